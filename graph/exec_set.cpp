// SPDX-License-Identifier: Apache-2.0
// Which graph each exec runs, and what is held for the others.
#include "escrow/graph/exec_set.hpp"

#include <atomic>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/used_alone.hpp"
#include "exec_state.hpp"
#include "graph_core.hpp"
#include "graph_shape.hpp"

namespace escrow::inline v0_2 {

struct ESCROW_LOCAL exec_set::state {
  using one_exec = graph_exec::state;
  struct shared_exec {
    graph_shape shape;
    std::unique_ptr<one_exec> exec;
    std::size_t current;  // the index of the member that it runs
  };
  struct member_graph {
    graph source;
    std::size_t exec;  // the index
    holding held;      // empty while the exec runs this graph, and holds it
  };

  // The exec that runs `source`, the next member, from now on; all lists have room.
  [[nodiscard]] std::size_t exec_for(graph const& source, instantiate_options const& options);

  static inline constinit std::atomic<std::uint64_t> last_id{0};
  // Relaxed: only unique.
  std::uint64_t const id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  std::vector<member_graph> members;  // what they hold is dropped after the execs
  std::vector<shared_exec> execs;
  std::vector<std::string> reasons;
  std::uint64_t switches = 0;
};

std::size_t exec_set::state::exec_for(graph const& source, instantiate_options const& options) {
  graph_shape shape = shape_of(source.core()->native(), options.flags);
  std::string reason = shape.obstacle;
  for (std::size_t i = 0; i < execs.size() && shape.obstacle.empty(); ++i) {
    shared_exec& each = execs[i];
    if (!each.shape.obstacle.empty()) continue;
    reason = shape.difference_from(each.shape);
    if (!reason.empty()) continue;
    holding before;
    reason = each.exec->update("exec_set::add", source, options.bodies,
                               one_exec::references::stay_off, before);
    if (!reason.empty()) continue;
    members[each.current].held = std::move(before);
    each.current = members.size();
    return i;
  }
  auto exec =
      std::make_unique<one_exec>("exec_set::add", source, options, one_exec::references::stay_off);
  if (!reason.empty()) reasons.push_back(std::move(reason));
  execs.push_back({std::move(shape), std::move(exec), members.size()});
  return execs.size() - 1;
}

exec_set::exec_set() : state_(std::make_unique<state>()) {}
exec_set::exec_set(exec_set&& other) noexcept = default;
exec_set& exec_set::operator=(exec_set&& other) noexcept = default;
exec_set::~exec_set() = default;

exec_set::member exec_set::add(graph&& source, instantiate_options const& options,
                               source_location where) {
  constexpr char const* call = "exec_set::add";
  return detail::called_at(call, where, [&] {
    state& mine = require(call);
    static_cast<void>(detail::require_graph(call, source.core().get()));
    if (options.copies > 1) {
      throw usage_error(call, "`options.copies` is for launch_many(), which a set does not have",
                        "leave it 0, or use a graph_exec");
    }
    mine.members.reserve(mine.members.size() + 1);
    mine.execs.reserve(mine.execs.size() + 1);
    mine.reasons.reserve(mine.reasons.size() + 1);
    std::size_t const exec = mine.exec_for(source, options);
    mine.members.push_back({std::move(source), exec, {}});
    return member(mine.id, mine.members.size() - 1);
  });
}

void exec_set::launch(member which, stream_ref stream, source_location where) {
  constexpr char const* call = "exec_set::launch";
  detail::called_at(call, where, [&] {
    state& mine = require(call);
    if (which.set_ != mine.id) {
      throw usage_error(call, "`which` is of another set, or of none",
                        "pass what add() of this set returned");
    }
    state::member_graph& its = mine.members[which.index_];
    state::shared_exec& on = mine.execs[its.exec];
    if (on.current != which.index_) {
      on.exec->switch_to(its.source.core()->native(), its.held);
      mine.members[on.current].held = std::move(its.held);
      on.current = which.index_;
      ++mine.switches;
    }
    on.exec->launch(call, this, stream);
  });
}

exec_set_stats exec_set::stats() const {
  if (state_ == nullptr) return {};
  return {state_->members.size(), state_->execs.size(), state_->switches, state_->reasons};
}

resource_usage exec_set::held() const {
  if (state_ == nullptr) return {};
  std::vector<reclaimable const*> found;
  auto const add = [&found](deferred_releases const& held) {
    for (auto const& each : held) each.set->list_members(found);
  };
  for (auto const& each : state_->execs) add(each.exec->held());
  for (auto const& each : state_->members) add(each.held.held);
  return resource_usage_of(std::move(found));
}

exec_set::state& exec_set::require(char const* call) const {
  tell_used_alone(this, call);
  if (state_ != nullptr) [[likely]]
    return *state_;
  throw usage_error(call, "the set was moved from", "use the one that it was moved to");
}

}  // namespace escrow::inline v0_2
