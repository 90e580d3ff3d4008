// SPDX-License-Identifier: Apache-2.0
// The search of a claim: idle slots, new ones, those of other work, at the limit.
#include "claim_search.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "device_store.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/graph_registry.hpp"

namespace escrow::inline v0_2 {

claimed_slot slot_pool::claim_search::run() {
  std::uint64_t const capture_id = capture.id;
  in.require_device(asked.call, asked.stream, capture);
  bool const may_be_in_arena = !is_eager() && in.in_arena.may_be && is_in_order();
  if (of.bytes > in.sizes.bytes_max && (!may_be_in_arena || in.ask_for_arena() == nullptr)) {
    refuse_size();
  }
  while (true) {
    lease_log::room for_note;  // made before a slot is taken, which would be lost
    if (capture.is_active() && in.options.group && !in.in_arena.may_be) {
      for_note = graph_registry::global().room_for_lease(capture.id, capture.graph);
    }
    seen.pass = in.next_pass();
    slot* found = nullptr;
    if (seen.is_first) found = take();
    if (found == nullptr && (seen.failure == nullptr || seen.is_out_of_memory)) {
      found = take_at_limit();
    }
    if (found != nullptr) {
      if (capture.is_active() && in.options.group) {
        note_in_group(*found, for_note);
      }
      return in.leased(*found, on, asked, capture_id);
    }
    in.require_open(asked.call, of, asked.stream);  // if closed meanwhile, it is not exhausted
    if (!may_search_again()) {
      if (!asked.host_wait_max || seen.failure != nullptr) refuse();
      return {};
    }
    // Detects a lost device or capture, which is not announced.
    detail::capture_dependencies after;
    capture = usable_capture_of(asked.call, asked.stream, &after);
    if (capture.id != capture_id) {
      throw usage_error(asked.call,
                        "a capture of `stream` has begun or ended while the claim waited",
                        "use a stream on one thread at a time");
    }
    frontier = capture_frontier(after);
    // Another thread may have ended a lease of this stream meanwhile, without a record.
    if (capture.is_none()) in.record_deferred(on);
  }
}

slot* slot_pool::claim_search::take() {
  if (capture.is_active()) return take_captured();
  if (in.kind_of(asked) == claim_kind::for_host) return take_unused();
  return take_eager();
}

slot* slot_pool::claim_search::take_late() {
  bool const is_new = of.slots.existing() < reused_late(of.bytes);
  slot* const found = is_new ? make_slot() : of.free.take_oldest();
  if (found != nullptr) in.wait_for(*found, asked.stream, found->key_ == on.id);
  return found;
}

slot* slot_pool::claim_search::take_eager() {
  if (in.is_reused_late) [[unlikely]] {
    if (slot* const found = take_late()) return found;
  }
  slot* found = in.take_idle(of, seen.pass, true);
  if (found == nullptr) found = grow();  // on failure there may be one to wait for
  if (found != nullptr && found->key_ == on.id) in.wait_for(*found, asked.stream, true);
  if (found == nullptr && of.free.lists() > 1) found = in.take_idle(of, seen.pass);
  if (found == nullptr) found = of.free.take_oldest();
  // A release on another thread may have come after this claim looked there, and claimers of the
  // stream may have more.
  if (found == nullptr && in.cover_all(of, on)) found = of.free.take_oldest();
  if (found == nullptr) return seen.is_first ? nullptr : grow_in_room();
  in.wait_for(*found, asked.stream, found->key_ == on.id);
  return found;
}

slot* slot_pool::claim_search::take_unused() {
  if (in.is_hosts_reused_late && of.slots.existing() < few_of(of.bytes)) [[unlikely]] {
    if (slot* const made = make_slot()) return made;
  }
  bool const may_grow = of.slots.existing() < in.slots_max;
  slot* found = in.take_idle(of, seen.pass, may_grow);
  if (found == nullptr) found = grow();  // the same
  if (found == nullptr && may_grow) found = in.take_idle(of, seen.pass);
  if (found == nullptr && is_eager() && in.cover_all(of, on)) {
    search_pass again = in.next_pass();
    found = in.take_idle(of, again);
  }
  return found != nullptr || seen.is_first ? found : grow_in_room();
}

namespace {

// A pool's `make` runs on this thread.
class making {
 public:
  explicit making(slot_pool const& of) noexcept : of_(of), outer_(std::exchange(innermost, this)) {}
  making(making&&) = delete;
  ~making() { innermost = outer_; }

  [[nodiscard]] static bool is_for(slot_pool const& asked) noexcept {
    making const* each = innermost;
    while (each != nullptr && &each->of_ != &asked) each = each->outer_;
    return each != nullptr;
  }

 private:
  static inline thread_local making const* innermost = nullptr;

  slot_pool const& of_;
  making const* const outer_;
};

}  // namespace

slot* slot_pool::claim_search::make_slot() noexcept {
  if (seen.failure != nullptr) return nullptr;  // nothing has changed since
  if (making::is_for(in.owner)) {
    try {
      throw usage_error(asked.call,
                        "`make` of \"" + in.options.label + "\" claims from its own pool",
                        "make what it needs by another pool, or without one");
    } catch (...) {
      seen.note_failure();
      return nullptr;
    }
  }
  if (of.slots.existing() >= in.slots_max ||
      !in.sizes.reserve(of, seen.has_turn ? 0 : in.turns.room_of_turn()))
    return nullptr;
  seen.reclaimed_before = reclaimed();
  // The room of a closed pool's slot stays unused. Relaxed: see slot_count.
  std::size_t const count =
      of.slots.try_add(in.slots_max, [this] { return !in.sizes.is_closed(); });
  if (count == 0) {
    in.sizes.give_back(of, pool_sizes::end::not_made);
    return nullptr;
  }
  in.references.fetch_add(1, std::memory_order_relaxed);  // relaxed: the owner has one
  try {
    device_scope const device(in.options.device);
    relaxed_capture_scope const relaxed;
    memory_scope::set const known({.is_of_pool = true});
    making const now(in.owner);
    slot* const made = new slot(in.owner, of, in.make);
    of.bytes_told.store(made->resource_->bytes, std::memory_order_relaxed);
    made->number_ = in.grown.fetch_add(1, std::memory_order_relaxed);
    raise_to(of.slots_peak, count);
    in.sizes.note_peak();
    return made;
  } catch (...) {
    seen.note_failure();
  }
  in.references.fetch_sub(1, std::memory_order_relaxed);
  of.slots.remove();
  in.sizes.give_back(of, pool_sizes::end::not_made);
  return nullptr;
}

slot* slot_pool::claim_search::grow() {
  std::size_t const now = in.sizes.bytes();
  bool const may_make = seen.failure == nullptr && of.slots.existing() < in.slots_max;
  if (!in.bound.is_any() || !may_make || now + of.bytes <= device_store::kept_min) {
    return make_slot();
  }
  auto const note = [this] { in.bound.note(in.sizes.bytes_alive(true), of.bytes); };
  auto const kept_max = [this] { return std::max(in.bound.most(), device_store::kept_min); };
  std::size_t const all = in.sizes.bytes_alive(false) + of.bytes;
  if (!in.bound.is_noted_lately()) note();
  if (all <= kept_max()) return make_slot();
  slot* const larger = is_eager() && is_in_order() ? take_larger() : nullptr;
  if (larger != nullptr) {
    larger->surplus_ = larger->of_.bytes - of.bytes;
    in.bound.add_surplus(larger->surplus_);
    return larger;
  }
  note();  // more may be in use by now
  if (all > kept_max()) {
    // Twice may be in passing, while sizes grow.
    if (of.given_up.load(std::memory_order_relaxed) > 2) in.bound.add_returning(of.bytes);
    in.free_idle(of, kept_max());
  }
  return make_slot();
}

slot* slot_pool::claim_search::take_larger() {
  constexpr std::size_t larger_max = 4;
  for (size_class* each = of.larger(); each != nullptr; each = each->larger()) {
    if (each->bytes / larger_max > of.bytes) break;
    if (each->slots.alive() == 0) continue;
    if (slot* const found = in.take_own(*each, on)) return found;
    if (slot* const found = each->free.take_newest(free_lists::idle)) return found;
  }
  return nullptr;
}

bool slot_pool::claim_search::may_make_room() const noexcept {
  if (of.bytes == 0 || of.slots.existing() >= in.slots_max) return false;
  return seen.failure == nullptr || seen.is_out_of_memory;
}

slot* slot_pool::claim_search::grow_in_room() {
  // Other threads may take what becomes free, but no room while this one has the turn.
  std::size_t const attempts_max = std::max<std::size_t>(16, in.sizes.existing(of, true));
  for (std::size_t attempt = 0; attempt < attempts_max && may_make_room(); ++attempt) {
    if (is_eager()) in.sizes.for_each([&](size_class& each) { in.cover_all(each, on); });
    bool const is_out_of_memory = seen.failure != nullptr;
    std::size_t freed = in.owner.trim(is_out_of_memory ? 0 : in.sizes.bytes_max - of.bytes);
    if (is_out_of_memory) {
      if (freed == 0) freed = trim_all(in.options.device, &in.owner);
      freed += device_store::global().trim(in.options.device);
      // The first time others may have freed some.
      if (freed == 0 && attempt != 0) return nullptr;
    }
    seen.failure = nullptr;
    if (slot* const made = make_slot()) return made;
    if (freed == 0) return nullptr;
  }
  return nullptr;
}

}  // namespace escrow::inline v0_2
