// Memory of what handles of nodes point to.
#include "recycled.hpp"

#include "state.hpp"

#include <new>

#include <sanitizer/asan_interface.h>  // its macros do nothing in other builds

namespace escrow::sim::model {
namespace {

// That header defines __has_feature, which g++ 12 lacks.
#if __has_feature(address_sanitizer) || defined(__SANITIZE_ADDRESS__)
constexpr bool may_be_given_again = false;
#else
constexpr bool may_be_given_again = true;
#endif

}  // namespace

void* recycled::operator new(std::size_t bytes) {
  auto& s = the();
  // AddressSanitizer keeps what is free for a while, and then uses it again.
  if (!may_be_given_again && !s.how.stepped && s.how.reuses_handles) return ::operator new(bytes);
  auto& idle = s.idle_blocks[bytes];
  if (may_be_given_again && !idle.empty() && s.reuse_of_nodes.next()) {
    auto* const memory = idle.back();
    idle.pop_back();
    return memory;
  }
  auto* const memory = ::operator new(bytes);
  s.blocks_of_run.insert(memory);
  return memory;
}

void recycled::operator delete(void* memory, std::size_t bytes) noexcept {
  auto& s = the();
  if (!s.blocks_of_run.contains(memory)) return ::operator delete(memory);
  ASAN_POISON_MEMORY_REGION(memory, bytes);
  s.idle_blocks[bytes].push_back(memory);
}

void forget_recycled(std::uint64_t seed) noexcept {
  auto& s = the();
  s.reuse_of_nodes.begin_run(seed);
  for (auto const& [bytes, idle] : s.idle_blocks) {
    for (auto* const memory : idle) {
      ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
      ::operator delete(memory);
    }
  }
  s.idle_blocks.clear();
  s.blocks_of_run.clear();
}

}  // namespace escrow::sim::model
