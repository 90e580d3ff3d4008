// SPDX-License-Identifier: Apache-2.0
// Eager work as a launch of a sharing group.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/deleter/sharing_group.hpp"
#include "escrow/internal/group_scope.hpp"
#include "escrow/internal/launch_order.hpp"
#include "holding.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr char const* its_name = "sharing_group::run";

// The group's turn, and what is claimed in it.
class run_scope {
 public:
  run_scope(std::shared_ptr<group_order> group, stream_ref stream,
            std::chrono::nanoseconds wait_max)
      : group_(std::move(group)),
        stream_(stream),
        turn_(group_),
        claims_(*group_, stream.get(), enter(wait_max)) {}
  run_scope(run_scope&&) = delete;
  // If it was not left: the call failed, and its exception goes on. If its end is not known, later
  // launches say so.
  ~run_scope() {
    if (has_left_) return;
    try {
      leave();
    } catch (std::exception const&) {
    }
  }

  void leave() {
    has_left_ = true;
    std::shared_ptr<group_lease> outliving;
    for (auto const& each : claims_.leases) {
      if (each->note_end_of_capture()) outliving = each;
    }
    claims_.has_ended = true;
    std::optional<source_location> not_ordered;
    if (auto const its = group_->known_memory()) not_ordered = its->end_scope(claims_);
    turn_.leave(its_name, stream_, claims_.stream_id);
    if (outliving != nullptr) {
      throw usage_error(its_name, name_of(*outliving) + " outlives the call",
                        "release it in the call, or use claim_kept");
    }
    if (!not_ordered) return;
    auto const its = std::ranges::find(claims_.leases, *not_ordered,
                                       [](auto const& each) { return each->where; });
    throw usage_error(its_name,
                      (its != claims_.leases.end() ? name_of(**its) : std::string("a lease")) +
                          " ended where its uses could not be recorded: the group's next launch "
                          "does not wait for them",
                      "release it on the thread of the call, before the call ends");
  }

 private:
  std::uint64_t enter(std::chrono::nanoseconds wait_max) {
    refuse_capturing(its_name, stream_);
    launch_lock const lock(its_name, turn_, wait_max);
    std::uint64_t id = turn_.wait_for_last(its_name, stream_, nullptr);
    if (id == 0) id = stream_id(stream_);
    turn_.enter();
    return id;
  }

  std::shared_ptr<group_order> group_;
  stream_ref stream_;
  holding turn_;
  group_scope claims_;
  bool has_left_ = false;
};

}  // namespace

void sharing_group::run_call(stream_ref stream, cudaError_t (*invoke)(void const*),
                             void const* argument, std::chrono::nanoseconds wait_max,
                             source_location where) const {
  std::optional<run_scope> scope;
  detail::called_at(its_name, where, [&] { scope.emplace(order_, stream, wait_max); });
  check(invoke(argument), "sharing_group::run: the function", where);
  detail::called_at(its_name, where, [&] { scope->leave(); });
}

}  // namespace escrow::inline v0_2
