// SPDX-License-Identifier: Apache-2.0
// Memory of what handles of nodes point to.
#include "recycled.hpp"

#include "slots.hpp"

#include <cstring>
#include <map>
#include <new>
#include <unordered_set>
#include <vector>

#include <sanitizer/asan_interface.h>  // its macros do nothing in other builds

namespace escrow::sim::model {
namespace {

// That header defines __has_feature, which g++ 12 lacks.
#if __has_feature(address_sanitizer) || defined(__SANITIZE_ADDRESS__)
constexpr bool may_be_given_again = false;
#else
constexpr bool may_be_given_again = true;
#endif

struct node_memory {
  options how;
  reuse_choice choice;
  // What was made since the run began; of that, what is destroyed, by size.
  std::unordered_set<void*> of_run;
  std::map<std::size_t, std::vector<void*>> idle;
};

// Leaked on purpose, as the state is.
node_memory& memory_of_nodes() {
  static auto* const one = new node_memory;
  return *one;
}

}  // namespace

void* recycled::operator new(std::size_t bytes) {
  auto& [how, choice, of_run, all_idle] = memory_of_nodes();
  // AddressSanitizer keeps what is free for a while, and then uses it again.
  if (!may_be_given_again && !how.stepped && how.reuses_handles) return ::operator new(bytes);
  auto& idle = all_idle[bytes];
  if (may_be_given_again && !idle.empty() && choice.next()) {
    auto* const memory = idle.back();
    idle.pop_back();
    return memory;
  }
  auto* const memory = ::operator new(bytes);
  of_run.insert(memory);
  return memory;
}

void recycled::operator delete(void* memory, std::size_t bytes) noexcept {
  auto& nodes = memory_of_nodes();
  if (!nodes.of_run.contains(memory)) return ::operator delete(memory);
  std::memset(memory, 0, bytes);  // of no graph: see refuse_destroyed()
  ASAN_POISON_MEMORY_REGION(memory, bytes);
  nodes.idle[bytes].push_back(memory);
}

void forget_recycled(options const& how) noexcept {
  auto& nodes = memory_of_nodes();
  nodes.how = how;
  nodes.choice.begin_run(how);
  for (auto const& [bytes, idle] : nodes.idle) {
    for (auto* const memory : idle) {
      ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
      ::operator delete(memory);
    }
  }
  nodes.idle.clear();
  nodes.of_run.clear();
}

}  // namespace escrow::sim::model
