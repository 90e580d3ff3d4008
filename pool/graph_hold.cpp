// What the pool needs of the deleter: how graphs and nodes hold slots, and how slots and the pool
// itself end on the worker.
#include "escrow/detail/graph_hold.hpp"

#include <memory>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"
#include "escrow/detail/reference_set.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

std::string_view graph_hold::label() const noexcept {
  return held_.pool().label();
}

std::size_t graph_hold::bytes() const noexcept {
  return held_.bytes_;
}

graph_hold& slot_pool::state::make_hold(slot& taken, std::uint64_t id, source_location where) {
  graph_hold* hold = &taken.first_hold_;
  std::unique_ptr<graph_hold> extra;  // for a slot that another graph holds already
  if (reuse.is_held(taken)) {
    extra = std::make_unique<graph_hold>(core, options.device, taken);
    hold = extra.get();
  }
  reuse.add(taken, id, where);
  hold->capture_id_ = id;
  static_cast<void>(extra.release());  // graph_is_gone() or forget_hold() deletes it
  return *hold;
}

void slot_pool::state::forget_hold(graph_hold& unused) noexcept {
  static_cast<void>(reuse.remove(unused.held_, unused.capture_id_));  // it is leased
  if (&unused != &unused.held_.first_hold_) delete &unused;
}

void slot_pool::state::hold_in_graph(slot& taken, capture_info const& capture,
                                     source_location where) {
  graph_hold& hold = make_hold(taken, capture.id, where);
  core.count_in_graphs(+1);
  bool is_taken = false;
  try {
    escrow::hold_in_graph(hold, true, capture.graph, capture.id, true, is_taken);
  } catch (...) {
    if (!is_taken) {  // else the hold is reclaimed with its set
      core.count_in_graphs(-1);
      forget_hold(hold);
    }
    throw;
  }
}

slot_share slot_pool::state::share(slot& leased) {
  // Relaxed: only that each share has another id counts.
  static std::atomic<std::uint64_t> last{capture_reuse::first_share_id};
  std::uint64_t const id = last.fetch_add(1, std::memory_order_relaxed);
  graph_hold& hold = make_hold(leased, id, {});
  core.count_in_graphs(+1);
  return slot_share(hold);
}

void graph_hold::graph_is_gone(reclaimable& thing) noexcept {
  auto& hold = static_cast<graph_hold&>(thing);
  hold.held_.pool().state_->graph_is_gone(hold);
}

void slot_pool::state::graph_is_gone(graph_hold& hold) noexcept {
  slot& held = hold.held_;
  std::uint64_t const capture_id = hold.capture_id_;
  core.count_in_graphs(-1);
  if (&hold != &held.first_hold_) delete &hold;
  // Between the graph and its list no claim finds the slot: those that find none look again
  // meanwhile. The reference is for afterwards, since the pool may end with the slot.
  references.fetch_add(1, std::memory_order_relaxed);
  free.looked_at.fetch_add(1, std::memory_order_relaxed);
  if (reuse.remove(held, capture_id)) {
    held.released_at_ = stamp();
    held.may_be_in_graphs_ = false;
    // It comes later than others that its stream released after it, so that its place on the
    // stream's list would be wrong: it is asked about by itself.
    held.key_ = held.is_done_ ? free_lists::idle : free_lists::own_list_of(held);
    go_home(held);
  }
  free.looked_at.fetch_sub(1, std::memory_order_relaxed);
  drop_reference();
}

slot::slot(slot_pool& pool)
    : reclaimable(pool.core(), release_lane::destroy, pool.device(), &slot_pool::destroy_slot),
      pool_(pool),
      ready_(event_cache::take(pool.device())),
      first_hold_(pool.core(), pool.device(), *this) {
  unrecorded_.reserve(1);
}

slot::~slot() {
  event_cache::put(pool_.device(), std::move(ready_));
}

void slot_pool::state::destroy(slot& idle) noexcept {
  slots.fetch_sub(1, std::memory_order_release);  // see there
  announce_return();
  if (!idle.is_done_) idle.reclaim_after(idle.ready_.get(), {});
  idle.push();
}

void slot_pool::state::leak(slot& unknown) noexcept {
  deleter_core::leak(unknown);
  slots.fetch_sub(1, std::memory_order_release);  // see there
  announce_return();
}

void slot_pool::destroy_slot(reclaimable& thing) noexcept {
  auto& idle = static_cast<slot&>(thing);
  // A graph may have had it last, and CUDA let it go, perhaps too early.
  if (may_work_go_on_untold()) return deleter_core::leak(idle);
  for (; idle.also_count_ > 0; --idle.also_count_) {
    cudaEvent_t const other = idle.also_ready_[idle.also_count_ - 1].ready.get();
    cudaError_t const status = cudaEventQuery(other);
    if (!succeeded(status) && answer_of(status) != ready_answer::done) {
      return idle.reclaim_again_after(other);
    }
  }
  state& of = *idle.pool_.state_;
  delete &idle;
  if (of.is_last_reference()) of.end();
}

bool slot_pool::state::is_last_reference() noexcept {
  // acq_rel: what every holder did with the pool happens before its end.
  return references.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void slot_pool::state::drop_reference() noexcept {
  if (is_last_reference()) end_on_worker.push();
}

void slot_pool::state::end() noexcept {
  deleter_core& used = core;
  delete &owner;
  used.drop_use();
}

}  // namespace escrow
