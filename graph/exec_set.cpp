// Which graph each exec runs, and what is held for the others.
#include "escrow/graph/exec_set.hpp"

#include <atomic>
#include <utility>

#include "escrow/core/error.hpp"
#include "exec_state.hpp"
#include "graph_core.hpp"
#include "graph_shape.hpp"
#include "graph_survey.hpp"

namespace escrow::inline v0_1 {

class ESCROW_LOCAL exec_set::state {
 public:
  state() = default;
  state(state&&) = delete;
  ~state();

  [[nodiscard]] member add(graph& source, instantiate_options const& options);
  void launch(member which, stream_ref stream);
  [[nodiscard]] exec_set_stats stats() const;
  [[nodiscard]] resource_usage held() const;

 private:
  using one_exec = graph_exec::state;
  struct shared_exec {
    graph_shape shape;
    std::unique_ptr<one_exec> exec;
    std::size_t current;  // the index of the member that it runs
  };
  struct member_graph {
    graph source;
    std::size_t exec;        // the index
    one_exec::holding held;  // empty while the exec runs this graph, and holds it
  };

  [[nodiscard]] static std::uint64_t next_id() noexcept;
  // The exec that runs `source` from now on; `members_` and `execs_` have room.
  [[nodiscard]] std::size_t exec_for(graph& source, instantiate_options const& options);

  std::uint64_t const id_ = next_id();
  std::vector<member_graph> members_;
  std::vector<shared_exec> execs_;
  std::vector<std::string> reasons_;
  std::uint64_t switches_ = 0;
};

std::uint64_t exec_set::state::next_id() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: only unique
}

exec_set::state::~state() {
  execs_.clear();
  for (member_graph& each : members_) {
    one_exec::release(std::move(each.held.held), each.held.end);
  }
}

std::size_t exec_set::state::exec_for(graph& source, instantiate_options const& options) {
  survey_root const root(source.core().get());
  graph_shape shape(root.handle, options.flags);
  // Of the exec that came nearest.
  graph_shape::difference nearest{0, shape.obstacle()};
  for (std::size_t i = 0; i < execs_.size() && shape.obstacle().empty(); ++i) {
    shared_exec& each = execs_[i];
    if (!each.shape.obstacle().empty()) continue;
    graph_shape::difference found = each.shape.compare(shape);
    if (found.text.empty()) {
      one_exec::holding before;
      found.text = each.exec->add_turn(root, options.bodies, before);
      if (found.text.empty()) {
        members_[each.current].held = std::move(before);
        each.current = members_.size();
        return i;
      }
    }
    if (nearest.text.empty() || found.agreement > nearest.agreement) nearest = std::move(found);
  }
  auto exec = std::make_unique<one_exec>(root, options, one_exec::references::stay_off);
  if (!nearest.text.empty()) reasons_.push_back(std::move(nearest.text));
  execs_.push_back({std::move(shape), std::move(exec), members_.size()});
  return execs_.size() - 1;
}

exec_set::member exec_set::state::add(graph& source, instantiate_options const& options) {
  static_cast<void>(detail::require_graph("exec_set::add", source.core().get()));
  members_.reserve(members_.size() + 1);
  execs_.reserve(execs_.size() + 1);
  reasons_.reserve(reasons_.size() + 1);
  std::size_t const exec = exec_for(source, options);
  members_.push_back({std::move(source), exec, {}});
  return {id_, members_.size() - 1};
}

void exec_set::state::launch(member which, stream_ref stream) {
  if (which.set_ != id_) {
    throw usage_error("exec_set::launch", "`which` is of another set, or of none",
                      "pass what add() of this set returned");
  }
  member_graph& its = members_[which.index_];
  shared_exec& on = execs_[its.exec];
  if (on.current != which.index_) {
    on.exec->switch_to(its.source.core()->native(), its.held);
    members_[on.current].held = std::move(its.held);
    on.current = which.index_;
    ++switches_;
  }
  on.exec->launch(stream);
}

exec_set_stats exec_set::state::stats() const {
  return {members_.size(), execs_.size(), switches_, reasons_};
}

resource_usage exec_set::state::held() const {
  std::vector<reclaimable const*> found;
  auto const add = [&found](deferred_releases const& held) {
    for (auto const& each : held) each.set->list_members(found);
  };
  for (shared_exec const& each : execs_) add(each.exec->held());
  for (member_graph const& each : members_) add(each.held.held);
  return resource_usage_of(std::move(found));
}

exec_set::exec_set() : state_(std::make_unique<state>()) {}
exec_set::exec_set(exec_set&& other) noexcept = default;
exec_set& exec_set::operator=(exec_set&& other) noexcept = default;
exec_set::~exec_set() = default;

exec_set::member exec_set::add(graph&& source, instantiate_options const& options,
                               source_location where) {
  constexpr char const* call = "exec_set::add";
  return detail::called_at(call, where, [&] { return require(call).add(source, options); });
}

void exec_set::launch(member which, stream_ref stream, source_location where) {
  constexpr char const* call = "exec_set::launch";
  detail::called_at(call, where, [&] { require(call).launch(which, stream); });
}

exec_set_stats exec_set::stats() const {
  return state_ == nullptr ? exec_set_stats{} : state_->stats();
}

resource_usage exec_set::held() const {
  return state_ == nullptr ? resource_usage{} : state_->held();
}

exec_set::state& exec_set::require(char const* call) const {
  if (state_ != nullptr) [[likely]]
    return *state_;
  throw usage_error(call, "the set was moved from", "use the one that it was moved to");
}

}  // namespace escrow::inline v0_1
