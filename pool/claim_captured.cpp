// Which slot a claim in a capture gets.
#include <atomic>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <vector>

#include "escrow/core/error.hpp"
#include "slot_pool_state.hpp"

namespace escrow {

namespace {
constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
}  // namespace

std::optional<claimed_slot> slot_pool::state::claim_captured(stream_ref stream,
                                                             capture_info const& capture,
                                                             source_location where) {
  slot* const found = take_captured(stream, capture, where);
  if (found == nullptr) return std::nullopt;
  if (!is_only_device) reuse.note_known(capture.id, stream.get());
  found->was_used_ = true;  // the graph will be launched again
  return claimed_slot{
      .what = found, .stream = stream.get(), .capture_id = capture.id, .thread = thread_of(stream)};
}

slot* slot_pool::state::take_captured(stream_ref stream, capture_info const& capture,
                                      source_location where) {
  // The near ones; those further away only rather than that the graph holds one more slot, so that
  // there are at most as many long walks as the graph holds slots.
  constexpr std::size_t near = 256;
  capture_frontier const frontier = frontier_of(stream);
  capture_reuse::search search(reuse, capture.id, frontier);
  if (slot* const found = search.look_at(near)) return found;
  recycle();
  slot* other = take_done(next_pass(), all);
  std::exception_ptr failure;
  try {
    // Relaxed: grow() looks again.
    if (other != nullptr || slots.load(std::memory_order_relaxed) < options.slots_max) {
      if (slot* const found = search.look_at(all)) {
        if (other != nullptr) put_back(*other);
        return found;
      }
    }
    if (other == nullptr) other = grow();
  } catch (...) {
    if (other != nullptr) put_back(*other);
    failure = std::current_exception();  // unless there is one to wait for
  }
  if (other != nullptr && failure == nullptr) {
    attach(*other, capture, where);
    return other;
  }
  slot* const found = take_with_edge(stream, capture);
  if (found == nullptr && failure != nullptr) std::rethrow_exception(failure);
  return found;
}

void slot_pool::state::attach(slot& taken, capture_info const& capture, source_location where) {
  try {
    hold_in_graph(taken, capture, where);
  } catch (...) {
    end_lease(taken);
    throw;
  }
}

slot* slot_pool::state::take_with_edge(stream_ref stream, capture_info const& capture) {
  slot* const found = reuse.take_unordered(capture.id, capture.graph);
  if (found == nullptr) return nullptr;
  std::vector<cudaGraphNode_t>& nodes = found->released_after_;
  cudaError_t const status = cudaStreamUpdateCaptureDependencies(
      stream.get(), nodes.data(), nullptr, nodes.size(), cudaStreamAddCaptureDependencies);
  if (status != cudaSuccess) {
    try {
      static_cast<void>(reuse.end_lease_in(*found, capture.id, nodes,
                                           found->released_edges_));  // its graph holds it
    } catch (std::bad_alloc const&) {
      end_lease(*found);
    }
  }
  check(status, "cudaStreamUpdateCaptureDependencies");
  edges_added.fetch_add(1, std::memory_order_relaxed);
  return found;
}

}  // namespace escrow
