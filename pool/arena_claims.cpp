// SPDX-License-Identifier: Apache-2.0
// Claims from the arena of a sharing group: of captures, and of sharing_group::run().
#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "arena.hpp"
#include "claim_search.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/parked_group.hpp"
#include "escrow/internal/reference_set.hpp"
#include "escrow/pool/device_memory.hpp"

namespace escrow::inline v0_2 {

namespace {

arena::request request_for(std::size_t bytes, size_class const& of, std::uint64_t graph,
                           cudaGraph_t handle, source_location where) {
  constexpr std::size_t alignment = 256;
  bytes = std::max<std::size_t>(bytes, 1);
  return {.bytes = (bytes + alignment - 1) / alignment * alignment,
          .graph = graph,
          .handle = handle,
          .of = &of,
          .where = where};
}

void require_unparked(char const* call, arena::claimed const& got, pool_options const& its) {
  if (got.place == nullptr) refuse_parked(call, *its.group->order());
}

}  // namespace

arena& slot_pool::arena_of() const noexcept {
  return state_->in_arena.its();
}

arena* slot_pool::state::ask_for_arena() {
  return in_arena.known
      .get([this](auto& place) {
        device_scope const current(options.device);
        relaxed_capture_scope const relaxed;
        place = arena::of(*options.group->order(), options.device);
      })
      .get();
}

slot* slot_pool::claim_search::take_in_arena() {
  if (seen.failure != nullptr || !seen.is_first) {
    in.owner.trim(0, true);  // idle blocks may be the memory that is missing
    seen.failure = nullptr;
  }
  arena& its = in.in_arena.its();
  arena::claimed got =
      its.claim(request_for(asked.bytes, of, capture.id, capture.graph, asked.where), frontier);
  require_unparked(asked.call, got, in.options);
  slot* found = slot_at(got);
  if (found == nullptr) return nullptr;
  if (!found->may_be_in_graphs_) {
    give_from_arena(*found, got);
  } else if (in.reuse.lease_in_arena(*found, capture.id, got)) {
    got.place->spare = std::move(got.after);
    return found;
  } else {  // its graph was instantiated or hoisted since, and keeps the slot as it is
    got.place = &its.renew(*got.place);
    found = slot_at(got);
    if (found == nullptr) return nullptr;
    give_from_arena(*found, got);
  }
  if (in.reuse.lease_in_arena(*found, capture.id, got)) return found;
  in.end_lease(*found);
  throw usage_error(asked.call, "the capture was ended while the call used it",
                    "use a stream on one thread at a time");
}

void slot_pool::claim_search::give_from_arena(slot& made, arena::claimed const& got) {
  std::size_t const begin = made.place_->begin;
  std::size_t const end = made.place_->end;
  try {
    give_to_graph(made, true);
  } catch (...) {  // the slot is destroyed
    in.in_arena.its().put_back(capture.id, begin, end, got);
    throw;
  }
}

slot* slot_pool::claim_search::slot_at(arena::claimed const& got) {
  arena_place& place = *got.place;
  bool const is_new = place.held == nullptr;
  std::size_t const bytes = place.end - place.begin;
  // Then it is mapped, too. A claim before may have failed to move it.
  if (!is_new && place.held->begin_in_arena_ == place.begin &&
      place.held->bytes_in_arena_ == bytes) {
    return place.held;
  }
  // It has no room to wait for: a closed pool gets none.
  auto const is_open = [this] { return !in.sizes.is_closed(); };
  constexpr auto no_limit = std::numeric_limits<std::uint32_t>::max();
  if (is_new && of.in_arena.try_add(no_limit, is_open) == 0) {
    in.in_arena.its().give_up(got);
    return nullptr;
  }
  if (is_new) in.references.fetch_add(1, std::memory_order_relaxed);  // relaxed: the owner has one
  seen.reclaimed_before = reclaimed();
  try {
    in.in_arena.its().map(place);
    void* const address = in.in_arena.its().address_of(place);
    if (is_new) {
      place.held = new slot(in.owner, of, in.make, address, bytes);
      place.held->place_ = &place;
    } else {
      place.held->resource_ = in.make(of, address, bytes);
    }
    slot& its = *place.held;
    in.in_arena.bytes.fetch_add(bytes - its.bytes_in_arena_, std::memory_order_relaxed);
    its.begin_in_arena_ = place.begin;
    its.bytes_in_arena_ = bytes;
    return &its;
  } catch (...) {
    seen.note_failure();
  }
  if (is_new) {
    in.references.fetch_sub(1, std::memory_order_relaxed);
    of.in_arena.remove();
  }
  in.in_arena.its().give_up(got);
  return nullptr;
}

// Eager claims, in sharing_group::run().

claimed_slot slot_pool::claim_search::run_in(group_scope& scope) {
  in.require_device(asked.call, asked.stream, capture);
  slot* found = nullptr;
  for (bool is_last = false; found == nullptr; is_last = true) {
    arena::claimed const got = in.in_arena.its().claim(
        request_for(asked.bytes, of, scope.number, nullptr, asked.where), {});
    require_unparked(asked.call, got, in.options);
    found = slot_at(got);
    if (found != nullptr) break;
    in.require_open(asked.call, of, asked.stream);
    if (is_last || !seen.is_out_of_memory) refuse();
    in.owner.trim(0, true);
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
  return in.leased(*found, on, asked.where);
}

void slot_pool::state::leave_arena(slot& idle) noexcept {
  idle.in_group_.reset();
  group_scope const* const scope = group_scope::of(idle.place_->graph);
  if (scope == nullptr) return destroy(idle);
  // What the scope's stream comes after, its next claims come after.
  auto const wait_for = [&](cudaEvent_t ready) {
    return succeeded(cudaStreamWaitEvent(scope->stream, ready, 0));
  };
  bool is_ordered = idle.is_done_ || idle.key_ == scope->stream_id || wait_for(idle.ready());
  for (cached_event const& also : idle.also_ready_) {
    is_ordered = is_ordered && wait_for(also.recorded.get());
  }
  if (!is_ordered) return destroy(idle);
  in_arena.its().release(*idle.place_, {}, 0);  // allocates nothing: it was released before no node
}

void arena::end_scope(group_scope const& ended) noexcept {
  slot* left = nullptr;
  {
    std::lock_guard const lock(mutex_);
    auto const found = graphs_.find(ended.number);
    if (found == graphs_.end()) return;
    for (arena_place* const each : found->second.idle) {  // the others end with their leases
      each->its_state = arena_place::state::gone;
      each->held->newer_ = std::exchange(left, each->held);
    }
    found->second.idle.clear();
    found->second.released.clear();
  }
  // Each pool's neighbours get one event, behind all work of the scope.
  stream_use const on = use_of(ended.stream, ended.stream_id, device_);
  while (left != nullptr) {
    slot* const first = left;
    slot* last = first;
    while (last->newer_ != nullptr && &last->newer_->pool_ == &first->pool_) last = last->newer_;
    left = std::exchange(last->newer_, nullptr);
    first->pool_.state_->cover(first, on, false, "sharing_group::run");
  }
}

}  // namespace escrow::inline v0_2
