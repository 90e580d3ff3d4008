// SPDX-License-Identifier: Apache-2.0
// Claims of sharing_group::run() from the arena of the group, and what rests between two runs.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "arena.hpp"
#include "claim_search.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/retry_cleanup.hpp"

namespace escrow::inline v0_2 {

claimed_slot slot_pool::claim_search::run_in(group_scope& scope) {
  in.require_device(asked.call, asked.stream, capture);
  slot* found = nullptr;
  for (bool is_last = false; found == nullptr; is_last = true) {
    arena::claimed got = in.in_arena.its().claim_in_scope(request_of(scope.number));
    require_unparked(got);
    found = slot_at(got);
    if (found != nullptr) break;
    in.require_open(asked.call, of, asked.stream);
    if (is_last || !seen.is_out_of_memory) refuse();
    in.owner.trim(0, true);
    trim_all(in.options.device, &in.owner);
    seen.failure = nullptr;
  }
  try {
    covered_place const covered{.begin = found->place_->begin, .end = found->place_->end};
    found->in_group_ = std::make_shared<group_lease>(in.of_leases, asked.where, covered,
                                                     std::span<cudaGraphNode_t const>());
    scope.leases.push_back(found->in_group_);
  } catch (...) {
    in.go_home(*found);
    throw;
  }
  found->is_done_ = false;
  found->key_ = on.id;
  return in.leased(*found, on, asked);
}

void slot_pool::state::wait_in_scope(slot& used) noexcept {
  if (used.place_ == nullptr || used.unrecorded_.empty()) return;
  if (group_scope::of(used.place_->graph) == nullptr) return;
  std::erase_if(used.unrecorded_, [](stream_use const& use) { return wait_on_host(use); });
}

namespace {

// Whether what the scope's stream does next comes after all uses of the slot.
bool come_after(slot& idle, group_scope const& scope) noexcept {
  auto const wait_for = [&](cudaEvent_t ready) {
    if (captures_nothing(scope.stream) && succeeded(cudaStreamWaitEvent(scope.stream, ready, 0)))
      return true;
    if (is_reclaiming()) return false;
    return succeeded(retry_cleanup_relaxed([ready] { return cudaEventSynchronize(ready); }));
  };
  bool is_after = idle.is_done_ || idle.key_ == scope.stream_id || wait_for(idle.ready());
  for (cached_event const& also : idle.also_ready_) {
    is_after = is_after && wait_for(also.recorded.get());
  }
  if (is_after) idle.also_ready_.clear();
  return is_after;
}

}  // namespace

void slot_pool::state::leave_arena(slot& idle) noexcept {
  idle.in_group_.reset();
  idle.last_in_group_.reset();
  group_scope const* const scope = group_scope::of(idle.place_->graph);
  // What the scope's stream comes after, its next claims come after.
  if (scope != nullptr && come_after(idle, *scope)) {
    return in_arena.its().release_in_scope(*idle.place_);
  }
  if (!in_arena.its().rest(*idle.place_)) destroy(idle);
}

arena::claimed arena::claim_in_scope(request const& asked) {
  std::lock_guard const lock(mutex_);
  if (is_closed_) return {};
  auto const [found, is_new] = graphs_.try_emplace(asked.graph);
  layout& in = found->second;
  claimed got;
  try {
    if (is_new) wake(in, asked.graph);
    make_room(in);
    got.place = &place_at(in, asked, choose(asked, in, {}));
  } catch (...) {
    if (in.places.empty()) graphs_.erase(found);
    throw;
  }
  mark_taken(*got.place);
  return got;
}

void arena::release_in_scope(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  release(place);
}

void arena::wake(layout& in, std::uint64_t scope) noexcept {
  in.is_of_scope = true;
  for (auto at = rested_.begin(); at != rested_.end();) {
    auto const each = at++;
    if (each->its_state != arena_place::state::idle) continue;
    in.places.splice(in.places.end(), rested_, each);
    in.extent = std::max(in.extent, each->reach.load(std::memory_order_relaxed));
    each->graph = scope;
    each->layout = &in;
  }
}

std::optional<source_location> arena::end_scope(group_scope const& ended) noexcept {
  slot* elsewhere = nullptr;
  {
    std::lock_guard const lock(mutex_);
    auto const found = graphs_.find(ended.number);
    if (found == graphs_.end()) return {};
    found->second.is_scope_over = true;
    elsewhere = std::exchange(found->second.ended_elsewhere, nullptr);
  }
  slot* left = nullptr;
  while (elsewhere != nullptr) {
    slot& each = *std::exchange(elsewhere, elsewhere->newer_);
    each.newer_ = nullptr;
    if (!come_after(each, ended)) {
      each.pool_.state_->destroy(each);
      continue;
    }
    each.key_ = ended.stream_id;
    each.newer_ = std::exchange(left, &each);
  }
  std::optional<source_location> not_back;
  {
    std::lock_guard const lock(mutex_);
    auto const found = graphs_.find(ended.number);
    if (found == graphs_.end()) return {};  // the last ones were destroyed meanwhile
    layout& in = found->second;
    auto const to_rest = [&](arena_place& place) {
      place.its_state = arena_place::state::gone;
      place.graph = 0;
      place.layout = nullptr;
      rested_.splice(rested_.end(), in.places, place.self);
    };
    for (slot* each = left; each != nullptr; each = each->newer_) {
      untake(*each->place_);
      to_rest(*each->place_);
    }
    for (auto next = in.places.begin(); next != in.places.end();) {
      arena_place& each = *next++;
      if (each.its_state != arena_place::state::idle) continue;
      to_rest(each);
      each.held->newer_ = std::exchange(left, each.held);
    }
    if (in.places.empty()) {  // the others end with their leases
      graphs_.erase(found);
    } else {
      not_back = in.places.front().where;
    }
  }
  // Each pool's neighbours get one event, behind all work of the scope. Then they rest.
  stream_use const on = use_of(ended.stream, ended.stream_id, device_);
  // On a worker nothing is recorded unasked. This call was given the stream.
  bool const is_asked = is_reclaiming() && captures_nothing(ended.stream);
  while (left != nullptr) {
    slot* const first = left;
    slot* last = first;
    while (last->newer_ != nullptr && &last->newer_->pool_ == &first->pool_) last = last->newer_;
    left = std::exchange(last->newer_, nullptr);
    first->pool_.state_->cover(first, on, is_asked, "sharing_group::run");
  }
  return not_back;
}

bool arena::rest(arena_place& place) noexcept {
  std::lock_guard const lock(mutex_);
  if (place.graph != 0) {
    auto const found = graphs_.find(place.graph);
    if (found == graphs_.end() || !found->second.is_of_scope || found->second.is_scope_over) {
      return false;
    }
    place.its_state = arena_place::state::kept;
    place.held->newer_ = std::exchange(found->second.ended_elsewhere, place.held);
    return true;
  }
  if (is_closed_) return false;
  if (place.held->pool_.state_->sizes.is_closed()) return false;  // under the lock: see close()
  place.its_state = arena_place::state::idle;
  return true;
}

std::size_t arena::idle_in_scopes(size_class const& of) noexcept {
  auto const is_idle = [&of](arena_place const& each) {
    return each.of == &of && each.its_state == arena_place::state::idle;
  };
  std::lock_guard const lock(mutex_);
  auto count = std::ranges::count_if(rested_, is_idle);
  for (auto const& [graph, its] : graphs_) {
    if (its.is_of_scope) count += std::ranges::count_if(its.places, is_idle);
  }
  return static_cast<std::size_t>(count);
}

void arena::end_rests(slot_pool const* of) noexcept {
  slot* left = nullptr;
  {
    std::lock_guard const lock(mutex_);
    for (arena_place& each : rested_) {
      if (each.its_state != arena_place::state::idle) continue;
      if (of != nullptr && &each.held->pool_ != of) continue;
      each.its_state = arena_place::state::gone;
      each.held->newer_ = std::exchange(left, each.held);
    }
  }
  std::optional<relaxed_capture_scope> relaxed;  // else a query could invalidate a capture
  try {
    if (left != nullptr) relaxed.emplace();
  } catch (std::exception const&) {  // the worker asks
  }
  while (left != nullptr) {
    slot& each = *std::exchange(left, left->newer_);
    each.newer_ = nullptr;
    if (each.is_done_ || (relaxed && slot_pool::state::is_done(each))) {
      std::lock_guard const lock(mutex_);
      each.place_->begin = each.place_->end = 0;  // its memory may go at once
      each.place_->reach.store(0, std::memory_order_relaxed);
    }
    each.pool_.state_->destroy(each);
  }
}

}  // namespace escrow::inline v0_2
