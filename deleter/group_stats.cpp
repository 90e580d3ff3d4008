// Sharing groups: copies, and statistics of what their graphs hold.
#include "escrow/deleter/sharing_group.hpp"

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/json.hpp"
#include "escrow/internal/launch_order.hpp"
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
                              {"stream_waits", stats.stream_waits},
                              {"outliving", stats.outliving}});
  text.pop_back();
  return text + ", \"unordered\": [" + ids + "]}";
}

void group_busy::throw_at(source_location where) const {
  detail::throw_again_at(*this, where);
}

sharing_group::sharing_group(sharing_options options)
    : order_(std::make_shared<group_order>(std::move(options))) {}

// In the library, where a program's ThreadSanitizer does not see the count.
sharing_group::sharing_group(sharing_group const&) noexcept = default;
sharing_group& sharing_group::operator=(sharing_group const& other) noexcept {
  sharing_group copy(other);
  order_.swap(copy.order_);
  return *this;
}
sharing_group::~sharing_group() {
  tell_handed_over(static_cast<launch_order*>(order_.get()));
}

sharing_stats sharing_group::stats() const {
  auto members = graph_registry::global().members_of(*order_);
  sharing_stats now{.slots = members.held.slots,
                    .bytes = members.held.bytes,
                    .unordered = std::move(members.unordered),
                    .outliving = members.outliving};
  if (auto const its = order_->known_memory()) now.bytes += its->bytes();
  std::lock_guard const lock(order_->mutex);
  now.launches = order_->launches;
  now.stream_waits = order_->stream_waits;
  return now;
}

std::string sharing_group::describe() const {
  return "sharing group \"" + order_->options.label + "\": " + to_json(stats());
}

}  // namespace escrow::inline v0_1
