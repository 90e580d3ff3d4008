// SPDX-License-Identifier: Apache-2.0
// The scopes of each thread.
#include "escrow/internal/group_scope.hpp"

#include <atomic>
#include <limits>

namespace escrow::inline v0_2 {

namespace {

thread_local group_scope* innermost = nullptr;

std::uint64_t next_number() noexcept {
  // Captures count up from 1. Relaxed: only needs to be unique.
  static std::atomic<std::uint64_t> last{std::numeric_limits<std::uint64_t>::max()};
  return last.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

group_scope::group_scope(group_order const& its, cudaStream_t on, std::uint64_t id) noexcept
    : group(its), stream(on), stream_id(id), number(next_number()), outer_(innermost) {
  innermost = this;
}

group_scope::~group_scope() {
  innermost = outer_;
}

group_scope* group_scope::of(group_order const& group, cudaStream_t on) noexcept {
  group_scope* found = innermost;
  while (found != nullptr && (&found->group != &group || found->stream != on)) {
    found = found->outer_;
  }
  return found;
}

bool group_scope::is_in(group_order const& group) noexcept {
  group_scope const* found = innermost;
  while (found != nullptr && &found->group != &group) found = found->outer_;
  return found != nullptr;
}

group_scope* group_scope::of(std::uint64_t number) noexcept {
  group_scope* found = innermost;
  while (found != nullptr && (found->number != number || found->has_ended)) found = found->outer_;
  return found;
}

}  // namespace escrow::inline v0_2
