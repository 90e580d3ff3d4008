// Claims of captures from the arena of their sharing group.
#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>

#include "arena.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/reference_set.hpp"
#include "escrow/pool/device_memory.hpp"
#include "slot_pool_state.hpp"

namespace escrow::inline v0_1 {

arena& slot_pool::arena_of() const noexcept {
  return *state_->in_arena.its;
}

arena* slot_pool::state::ask_for_arena() {
  std::call_once(in_arena.is_known, [this] {
    device_scope const current(options.device);
    relaxed_capture_scope const relaxed;
    in_arena.its = arena::of(*options.group->order(), options.device);
  });
  return in_arena.its.get();
}

slot* slot_pool::state::take_in_arena(claim_request const& asked, size_class& of,
                                      capture_info const& capture, capture_frontier const& frontier,
                                      search_result& seen) {
  constexpr std::size_t alignment = 256;
  if (seen.failure != nullptr) {
    owner.trim(0, true);  // idle blocks may be the memory that is missing
    seen.failure = nullptr;
  }
  std::size_t const bytes = std::max<std::size_t>(asked.bytes, 1);
  arena::request const request{.bytes = (bytes + alignment - 1) / alignment * alignment,
                               .graph = capture.id,
                               .handle = capture.graph,
                               .of = &of};
  while (true) {
    arena::earlier_users earlier;
    arena_place& place = in_arena.its->claim(request, frontier, earlier);
    slot* found = place.held;
    if (found == nullptr) {
      found = make_in_arena(of, place, seen);
      if (found == nullptr) return nullptr;
      give_to_graph(*found, capture, asked.where, true);
    }
    if (reuse.lease_in_arena(*found, capture.id, std::move(earlier))) return found;
    end_lease(*found);
  }
}

slot* slot_pool::state::make_in_arena(size_class& of, arena_place& place, search_result& seen) {
  // It has no room to wait for: a closed pool gets none.
  auto const is_open = [this] { return !is_closed.load(std::memory_order_relaxed); };
  constexpr auto no_limit = std::numeric_limits<std::uint32_t>::max();
  if (of.in_arena.try_add(no_limit, is_open) == 0) {
    in_arena.its->remove(place);
    return nullptr;
  }
  references.fetch_add(1, std::memory_order_relaxed);  // relaxed: the owner has one
  seen.reclaimed_before = reclaimed();
  try {
    device_scope const device(options.device);
    relaxed_capture_scope const relaxed;
    in_arena.its->map(place);
    void* const address = in_arena.its->address_of(place);
    memory_source const from{.allocate =
                                 [address](void** to, std::size_t) {
                                   *to = address;
                                   return cudaSuccess;
                                 },
                             .free = [](void*) { return cudaSuccess; }};
    slot* const made = new slot(owner, of, make, &from, place.end - place.begin);
    in_arena.bytes.fetch_add(place.end - place.begin, std::memory_order_relaxed);
    made->place_ = &place;
    place.held = made;
    return made;
  } catch (cuda_error const& error) {
    seen.failure = std::current_exception();
    seen.is_out_of_memory = error.status() == cudaErrorMemoryAllocation;
  } catch (...) {
    seen.failure = std::current_exception();
    seen.is_out_of_memory = false;
  }
  references.fetch_sub(1, std::memory_order_relaxed);
  of.in_arena.remove();
  in_arena.its->remove(place);
  return nullptr;
}

}  // namespace escrow::inline v0_1
