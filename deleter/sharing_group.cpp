// A sharing group's statistics, in numbers and words.
#include "escrow/deleter/sharing_group.hpp"

#include <mutex>
#include <utility>

#include "escrow/internal/json.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_1 {

std::string to_json(sharing_stats const& stats) {
  std::string ids;
  for (std::uint64_t const id : stats.unordered) {
    ids += (ids.empty() ? "" : ", ") + std::to_string(id);
  }
  std::string text = json_of({{"slots", stats.slots},
                              {"bytes", stats.bytes},
                              {"launches", stats.launches},
                              {"stream_waits", stats.stream_waits}});
  text.pop_back();
  return text + ", \"unordered\": [" + ids + "]}";
}

sharing_group::sharing_group(sharing_options options)
    : order_(std::make_shared<group_order>(std::move(options))) {}

sharing_stats sharing_group::stats() const {
  auto members = graph_registry::global().members_of(*order_);
  sharing_stats now{.slots = members.held.slots,
                    .bytes = members.held.bytes,
                    .unordered = std::move(members.unordered)};
  std::lock_guard const lock(order_->mutex);
  now.launches = order_->launches;
  now.stream_waits = order_->stream_waits;
  return now;
}

std::string sharing_group::describe() const {
  return "sharing group \"" + order_->options.label + "\": " + to_json(stats());
}

}  // namespace escrow::inline v0_1
