// A deleter's statistics, and what it waits for, in words.
#include <algorithm>
#include <string>
#include <thread>

#include "core_state.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/internal/json.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

std::string to_json(deleter_stats const& stats) {
  return json_of({{"reclaimed", stats.reclaimed},
                  {"pending", stats.pending},
                  {"pending_peak", stats.pending_peak},
                  {"in_graphs", stats.in_graphs},
                  {"leaked", stats.leaked},
                  {"errors", stats.errors}});
}

std::string deleter::describe() const {
  deleter_core::state const& state = *core_->state_;
  deleter_stats const now = stats();
  std::string text = "deleter \"" + state.options.thread_name + "\": " + to_json(now);
  std::uint64_t const launches = std::min<std::uint64_t>(now.pending, state.recycled.deferred());
  auto const add = [&text](std::uint64_t count, char const* what) {
    if (count != 0) text += "\n  " + std::to_string(count) + what;
  };
  add(now.pending - launches, " wait for an event");
  add(launches, " reference sets of graphs wait for a last launch");
  // Relaxed: only for the text.
  if (state.reclaiming_thread.load(std::memory_order_relaxed) != std::thread::id{}) {
    text += "\n  a pass is running: if it goes on, an owner's destructor blocks the thread";
  }
  return text + graph_registry::global().describe_sets(*core_);
}

}  // namespace escrow::inline v0_1
