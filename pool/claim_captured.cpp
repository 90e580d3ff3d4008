// Which slot a claim in a capture gets, and how the captured graph comes to hold it.
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "capture_order.hpp"
#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/reference_set.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

std::optional<slot_lease> slot_pool::claim_captured(stream_ref stream, capture_info const& capture,
                                                    source_location where) {
  capture_frontier frontier = frontier_of(stream);
  slot* found = take_reusable(capture, frontier);
  if (found == nullptr) {
    found = take_done();
    if (found == nullptr) found = grow();
    if (found != nullptr) {
      attach(*found, capture, where);
    } else {
      found = take_with_edge(stream, capture);
    }
  }
  if (found == nullptr) return std::nullopt;
  found->claimed_at_ = std::move(frontier.nodes);  // nothing may fail any more: the slot is taken
  found->was_used_ = true;
  return slot_lease(*found, stream, 0, capture.id);
}

void slot_pool::attach(slot& taken, capture_info const& capture, source_location where) {
  try {
    hold_in_graph(taken, capture, where);
  } catch (...) {
    let_go(taken, capture.id, false);
    throw;
  }
}

graph_hold& slot_pool::make_hold(slot& taken, std::uint64_t id, source_location where) {
  graph_hold* hold = &taken.first_hold_;
  std::unique_ptr<graph_hold> extra;  // for a slot that another graph holds already
  if (state_->ledger.is_held(taken)) {
    extra = std::make_unique<graph_hold>(state_->core, state_->options.device, taken);
    hold = extra.get();
  }
  state_->ledger.add(taken, *hold, id, where);
  static_cast<void>(extra.release());  // the ledger's from here on
  return *hold;
}

void slot_pool::hold_in_graph(slot& taken, capture_info const& capture, source_location where) {
  graph_hold& hold = make_hold(taken, capture.id, where);
  state_->core.count_in_graphs(+1);
  bool is_taken = false;
  try {
    escrow::hold_in_graph(hold, true, capture.graph, capture.id, true, is_taken);
  } catch (...) {
    if (!is_taken) {
      state_->core.count_in_graphs(-1);
      static_cast<void>(state_->ledger.remove(taken, capture.id));
      if (&hold != &taken.first_hold_) delete &hold;
    }
    throw;
  }
}

slot_share slot_pool::share(slot& leased) {
  // Relaxed: only that each share has another id counts.
  static std::atomic<std::uint64_t> last{capture_ledger::first_share_id};
  std::uint64_t const id = last.fetch_add(1, std::memory_order_relaxed);
  graph_hold& hold = make_hold(leased, id, {});
  leased.was_shared_ = true;
  state_->core.count_in_graphs(+1);
  return slot_share(hold);
}

slot* slot_pool::take_reusable(capture_info const& capture, capture_frontier const& frontier) {
  auto candidates = state_->ledger.reusable_slots(capture.id);
  while (!candidates.empty()) {
    std::vector<captured_span> spans;
    spans.reserve(candidates.size());
    for (auto const& each : candidates) {
      spans.push_back({.from = &each.use->claimed_at, .to = &each.use->released_at});
    }
    std::optional<std::size_t> const nearest = last_before(frontier, spans);
    if (!nearest) return nullptr;
    capture_ledger::reusable_slot const& found = candidates[*nearest];
    // The walk came to all nodes of the release, so that CUDA may be asked about them. If the graph
    // was edited and opened again since, they may be others with the same handles.
    bool const is_known = dependencies_of(found.use->released_at) == found.use->released_after;
    if (is_known && state_->ledger.take(found, capture.id)) return found.released;
    if (!is_known) state_->ledger.forget(found, capture.id);
    // Once more without that one: another thread was faster, or it is forgotten.
    candidates = state_->ledger.reusable_slots(capture.id);
  }
  return nullptr;
}

slot* slot_pool::take_with_edge(stream_ref stream, capture_info const& capture) {
  auto candidates = state_->ledger.reusable_slots(capture.id);
  while (!candidates.empty()) {
    capture_ledger::reusable_slot const found = std::move(candidates.back());  // released first
    candidates.pop_back();
    std::vector<cudaGraphNode_t> nodes = found.use->released_at;
    // They may be gone, if the graph was edited and opened again, which makes no other capture.
    if (!has_all(capture.graph, nodes) || dependencies_of(nodes) != found.use->released_after) {
      state_->ledger.forget(found, capture.id);
      continue;
    }
    if (!state_->ledger.take(found, capture.id)) continue;
    cudaError_t const status = cudaStreamUpdateCaptureDependencies(
        stream.get(), nodes.data(), nullptr, nodes.size(), cudaStreamAddCaptureDependencies);
    if (status != cudaSuccess) let_go(*found.released, capture.id, true);
    check(status, "cudaStreamUpdateCaptureDependencies");
    state_->edges_added.fetch_add(1, std::memory_order_relaxed);
    return found.released;
  }
  return nullptr;
}

}  // namespace escrow
