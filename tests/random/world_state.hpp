// SPDX-License-Identifier: Apache-2.0
// What a program's world has, and one call of the library with the faults inside it.
#pragma once

#include <escrow/core.hpp>
#include <escrow/internal/ready_event.hpp>
#include <escrow/internal/reference_set.hpp>

#include "allocation_watch.hpp"
#include "baton.hpp"
#include "places.hpp"

namespace escrow::test {

/// The number of a place of its kind, or of a way to do something.
using nth = std::size_t;

/// After calls of CUDA of which the program itself sees the status.
inline void forget_error() {
  static_cast<void>(cudaGetLastError());
}
inline bool is_success(cudaError_t status) {
  forget_error();
  return status == cudaSuccess;
}

/// The first of the layers of `world`: what all have. Each of the others adds the operations on one
/// kind of object.
struct world_state {
  using enum situation;
  using enum outcome;
  static constexpr std::size_t legacy_stream = 4;

  struct capture_state {
    enum class kind : std::uint8_t { none, active, invalid } is = kind::none;
    std::uint64_t id = 0;
    [[nodiscard]] bool is_none() const { return is == kind::none; }
    [[nodiscard]] bool is_active() const { return is == kind::active; }
    [[nodiscard]] bool is_invalid() const { return is == kind::invalid; }
  };
  /// An operation of a thread, from its beginning to its end.
  struct running {
    operation const* what = nullptr;  // null: none
    bool is_inside = false;           // a call of the library, where others may go on
    bool has_met = false;             // others are, or were, under way meanwhile
    bool is_shared = true;            // others have shares of the object that it uses, too
    std::uint64_t made_of = 0;        // the graph of its exec
  };
  /// A call of the library, inside of which others may go on. The allocation in it with that number
  /// fails, and `made` says how many there were; 0: none, and none is watched, since that takes ten
  /// times as long.
  class inside_call {
   public:
    explicit inside_call(std::uint64_t number = 0, std::uint64_t* made = nullptr) : made_(made) {
      baton::open_points();
      if (mine_ != nullptr) mine_->is_inside = true;
      if (number != 0) watch_.emplace(number);
    }
    inside_call(inside_call&&) = delete;
    ~inside_call() {
      if (watch_) *made_ = watch_->count();
      watch_.reset();
      if (mine_ != nullptr) mine_->is_inside = false;
      baton::close_points();
    }

   private:
    std::uint64_t* made_;
    std::optional<allocation_watch> watch_;
  };

  bool is_lost() const { return lost_[0] || lost_[1]; }
  void meet(situation met, std::uint64_t times = 1) { counts_.meet(met, times); }
  void fail(std::string what) { all_.fail(std::move(what)); }
  thing_state& state_of(int thing) { return model_.state_of(thing); }
  token make_owner() { return all_.make(thing_state::kind::owner); }
  /// One call of the library, with all that it may throw. `may_refuse`: usage_error is correct, or
  /// `may_refuse_by_then` afterwards; `may_fail`: cuda_error is. Both are after a fault.
  outcome attempt(bool may_refuse, bool may_fail, std::function<void()> const& action,
                  bool const& may_refuse_by_then = false) {
    outcome result = done;
    std::string what;
    arm_fault();
    std::uint8_t const failing = mine_ == nullptr || do_allocations_vary_
                                     ? std::uint8_t{0}
                                     : mine_->what->failing_allocation;
    std::uint64_t made = 0;
    try {
      inside_call const inside(failing, &made);
      action();
    } catch (pool_exhausted const&) {
      result = exhausted;
    } catch (group_busy const&) {
      result = exhausted;
    } catch (usage_error const& error) {
      result = refused;
      what = error.what();
    } catch (std::exception const& error) {
      result = failed;
      what = error.what();
    }
    bool const ran_out = failing != 0 && made >= failing;
    if (failing != 0) counts_.allocations.push_back(made);
    meet(allocation_failed, ran_out);
    is_disturbed_ = is_disturbed_ || ran_out;
    bool const disturbed = disarm_fault() || is_disturbed_ || is_lost();
    if (!disturbed && ((result == refused && !may_refuse && !may_refuse_by_then) ||
                       (result == failed && !may_fail)))
      fail("an operation threw for no reason: " + what);
    check_captures();
    return result;
  }

  /// One that has to be refused if `is_wrong`.
  outcome attempt_unless(bool is_wrong, std::string const& name,
                         std::function<void()> const& action) {
    outcome const result = attempt(is_wrong, false, action);
    if (result == done && is_wrong) fail(name + " succeeded that must be refused");
    return result;
  }

  /// One that has no reason to throw.
  outcome attempt(std::function<void()> const& action) { return attempt(false, false, action); }

  void arm_fault() {
    if (mine_ == nullptr || mine_->what->failing_call == 0 || is_lost()) return;
    constexpr std::array errors{cudaErrorMemoryAllocation, cudaErrorUnknown, cudaErrorInvalidValue};
    std::uint8_t const number = mine_->what->failing_call;
    sim::fail_nth_here(number, errors[number % errors.size()]);
    // Others may meet the consequences before this one has ended.
    if (baton::is_in_group()) is_disturbed_ = true;
  }

  bool disarm_fault() {
    if (mine_ == nullptr || mine_->what->failing_call == 0 || is_lost()) return false;
    bool const is_met = sim::faults_pending() == 0;
    sim::clear_faults();
    forget_error();
    if (baton::is_in_group()) {
      meet(fault_among_others);
      return true;
    }
    if (!is_met) return false;
    meet(fault_injected);
    return is_disturbed_ = true;
  }

  void check_captures() {
    std::uint64_t const seen = sim::captures_invalidated();
    if (seen != invalidated_) fail("a capture was harmed by " + sim::last_invalidation());
    invalidated_ = seen;
  }

  /// What the program itself does to captures may be wrong.
  void forgive_captures() {
    forget_error();
    invalidated_ = sim::captures_invalidated();
  }

  capture_state capture_at(nth s) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    if (cudaStreamGetCaptureInfo(streams_[s].handle, &status, &id, nullptr, nullptr, nullptr,
                                 nullptr) != cudaSuccess) {
      forget_error();
      return {};
    }
    if (status == cudaStreamCaptureStatusActive) return {capture_state::kind::active, id};
    if (status == cudaStreamCaptureStatusNone) return {};
    return {capture_state::kind::invalid, ~std::uint64_t{0}};
  }

  bool is_any_capturing() const {
    for (std::size_t i = 0; i < streams_.size(); ++i)
      if (!capture_at(i).is_none()) return true;
    return false;
  }

  /// Whether a capture began on the stream.
  bool is_origin(nth s) const {
    return std::ranges::find(captures_, s, &open_capture::origin) != captures_.end();
  }

  /// Whether work on the legacy stream would harm a capture.
  bool is_blocked(nth s) const {
    if (streams_[s].handle != cudaStreamLegacy) return false;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t const answer = cudaStreamIsCapturing(cudaStreamLegacy, &status);
    forget_error();
    return answer == cudaErrorStreamCaptureImplicit;
  }

  /// Whether the program has created it.
  bool is_own_stream(nth s) const {
    cudaStream_t const handle = streams_[s].handle;
    return handle != cudaStreamLegacy && handle != cudaStreamPerThread;
  }

  /// Whether a claimer, or a pool that it was given to, ends before the stream.
  bool must_outlive_others(nth s) const {
    for (nth p = 0; run_->lasts && p < homes_.size(); ++p)
      if (homes_[p] != 0 && (given_[p] >> s & 1U) != 0) return true;
    return std::ranges::any_of(
        claimers_, [s](claimer_place const& each) { return each.is_there() && each.stream == s; });
  }

  /// Whether a slot waits, or may have to, until its pool is given the stream.
  bool is_awaited(nth s) {
    for (int thing = 0; thing < model_.size(); ++thing)
      if (!state_of(thing).gone &&
          ((state_of(thing).awaited | state_of(thing).deferred_on) >> s & 1U) != 0)
        return true;
    return false;
  }

  /// What a stream may be refused for.
  bool is_unusable(nth s) const { return capture_at(s).is_invalid() || is_blocked(s); }
  bool has_exec(std::uint64_t serial) const {
    return std::ranges::any_of(execs_, [serial](exec_place const& each) {
      return each.is_there() && each.made_of == serial;
    });
  }
  /// Whether a condition of the graph, or of a child, may have no node.
  bool is_loose(graph_place const& place) const {
    auto const is_its = [&](conditional_place const& each) { return each.serial == place.serial; };
    return place.is_loose || std::ranges::any_of(loose_, is_its);
  }
  /// Whether CUDA may have no exec of the graph.
  bool may_lack_exec(graph_place const& place) const {
    return is_loose(place) || (place.is_single && (place.was_copied || has_exec(place.serial)));
  }
  bool is_usable(nth g) const { return graphs_[g].is_there() && !graphs_[g].is_captured_into; }

  bool is_there(node_place const& place) const {
    return place.id != 0 && graphs_[place.graph].serial == place.serial &&
           !graphs_[place.graph].is_captured_into;
  }

  /// Whether nodes with owners may be added to it.
  bool is_built(nth g) const { return is_usable(g) && graphs_[g].is_built; }

  bool is_body_of_a_graph(body_place const& place) const {
    return place.own.has_value() && graphs_[place.graph].serial == place.serial;
  }

  /// Whether nodes may be added; also if the graph itself is gone: the body keeps it.
  bool is_body_usable(body_place const& place) const {
    if (!place.own) return false;
    return !is_body_of_a_graph(place) || !graphs_[place.graph].is_captured_into;
  }

  bool has_bodies(std::uint64_t serial) const {
    return std::ranges::any_of(bodies_, [serial](body_place const& each) {
      return each.own.has_value() && each.serial == serial;
    });
  }

  /// Nodes and launches take leases alone; an address of a capture may be left to its graph.
  static bool has_lease_for(op by, lease_place const& place) {
    using enum op;
    constexpr std::array of_leases{
        launch_lease,           retire_lease,      add_node_of_lease, set_node_of_lease,
        add_body_node_of_lease, add_fill_of_lease, exec_set_of_lease, retire_both,
        end_in_host_function};
    if (!place.held) return false;
    if (by == leave_to_graph || by == read) return place.capture != 0;
    return !place.held->is_address() || std::ranges::find(of_leases, by) == of_leases.end();
  }

  /// Whether the node is of a kind that the operation takes; now and then it is another.
  static bool is_node_for(operation const& by, node_place const& place) {
    auto const is_any = [&](std::size_t way) { return by.arguments[way] == 3; };
    switch (by.kind) {
      case op::set_enabled:
        return is_any(2) || place.can_be_disabled();
      case op::set_node:
        return is_any(2) || place.is != node_kind::child;
      case op::set_child_node:
        return is_any(2) || place.is == node_kind::child;
      case op::exec_set_child:
        return is_any(3) || place.is == node_kind::child;
      case op::set_kernel_with:
      case op::exec_set_kernel_with:
        return place.is == node_kind::kernel;
      default:
        return true;
    }
  }
  /// In an exec a child gets the graph that it has, as that is now, and now and then another.
  bool is_child_for(operation const& by, graph_place const& place) const {
    return by.kind != op::exec_set_child || by.arguments[3] == 3 ||
           place.serial == nodes_[by.arguments[1] % nodes_.size()].child;
  }

  /// Whether the place has what that letter of an operation asks for.
  bool has_what_is_asked(char asked, nth at, operation const& by = {}) const {
    std::uint64_t const made_of = execs_[by.arguments[0] % execs_.size()].made_of;
    if (asked == 'c') return capture_at(at).is_active();
    if (asked == 'i') return capture_at(at).is_none();
    if (asked == 'r') return is_origin(at);
    if (asked == 'g') return is_usable(at) && is_child_for(by, graphs_[at]);
    if (asked == 'G') return !graphs_[at].is_there();
    // The graph of the exec, and now and then another.
    if (asked == 'u')
      return is_usable(at) && (by.arguments[2] == 3 || graphs_[at].serial == made_of);
    if (asked == 'q')
      return is_there(nodes_[at]) && nodes_[at].serial == made_of && is_node_for(by, nodes_[at]);
    if (asked == 'b') return is_body_usable(bodies_[at]);
    if (asked == 'B') return !bodies_[at].own;
    if (asked == 'e') return execs_[at].is_there();
    if (asked == 't') return turns_[at].has_value();
    if (asked == 'd')
      return execs_[at].is_there() && !execs_[at].bound &&
             execs_[at].made_of == hoisted_from_[by.arguments[0] % hoisted_.size()];
    if (asked == 'f') return members_[at].which.has_value();
    if (asked == 'l') return has_lease_for(by.kind, leases_[at]);
    if (asked == 'n') return is_there(nodes_[at]) && is_node_for(by, nodes_[at]);
    if (asked == 'y') return libraries_[at].found.has_value();
    if (asked == 'v') return events_[at] != nullptr;
    if (asked == 'a') return allocations_[at].made.has_value();
    if (asked == 'h') return hoisted_[at].has_value();
    if (asked == 'o') return owners_[at].share != nullptr;
    if (asked == 'x') return shared_[at] != nullptr;
    if (asked == 'p') return pools_[at] != nullptr;
    if (asked == 'j')
      return claimers_[at].is_there() &&
             (by.kind != op::begin_on || capture_at(claimers_[at].stream).is_none());
    char const filled = letter_of(asked);
    return filled == asked || !has_what_is_asked(filled, at, by);
  }

  own_process process_;  // the rest is in it
  things all_;
  reference& model_ = all_.model;
  run_counts& counts_ = all_.counts;
  std::array<running, program::threads_max> running_;
  static inline thread_local running* mine_ = nullptr;
  program const* run_ = nullptr;
  planted planted_ = planted::none;
  std::size_t thread_ = 0;
  bool is_careless_ = false;   // what leaks a slot is done, too
  bool is_disturbed_ = false;  // a fault was injected: later calls may have to throw
  bool is_stopped_ = false;
  bool is_any_let_go_ = false;         // a hoisted was released
  std::size_t leaked_by_hoisted_ = 0;  // that were destroyed without a release
  std::size_t deferred_releases_ = 0;  // of leases that may have ended where nothing was recorded
  bool do_allocations_vary_ = false;   // with the heap's addresses: none is made to fail
  std::array<bool, 2> lost_{};
  sim::counts at_begin_;
  std::uint64_t invalidated_ = 0;  // captures, on purpose
  std::uint64_t serials_ = 0;
  int node_ids_ = 0;
  bool is_any_due_ = false;  // a launcher's launch
  bool was_flushed_ = false;

  std::unique_ptr<deleter> worker_;
  std::array<stream_place, 6> streams_;
  std::array<std::unique_ptr<resource_pool<token>>, 2> pools_;
  std::array<bool, 2> is_closed_{};   // or about to be
  std::array<bool, 2> was_closed_{};  // the call is over
  sharing_group group_;               // of the pools, if the program says so
  std::optional<scratch_pool> own_scratch_;
  std::optional<stream_allocator> allocator_;  // has it instead, if the program says so
  scratch_pool* scratch_ = nullptr;            // that pool, if it is there
  bool is_scratch_closed_ = false;
  std::array<lease_place, 4> leases_;
  std::array<claimer_place, 3> claimers_;
  std::array<std::uint64_t, 3> homes_{};  // the serials of both pools and the scratch pool; 0: none
  std::array<unsigned, 3> given_{};       // the streams that they were given, a bit each
  bool any_stream_gone_ = false;
  std::array<graph_place, 4> graphs_;
  std::array<exec_place, 4> execs_;
  std::optional<exec_set> set_;
  std::array<member_place, 4> members_;
  std::array<std::optional<hoisted>, 2> hoisted_;
  std::array<std::uint64_t, 2> hoisted_from_{};     // the serial of that graph
  std::array<std::optional<turn_place>, 2> turns_;  // of the hoisteds
  std::array<node_place, 6> nodes_;
  std::array<body_place, 3> bodies_;
  std::map<int, conditional_place> conditionals_;  // by number
  // Of destroyed ones: there is no exec until another node, in the same body, has the condition.
  std::vector<conditional_place> loose_;
  std::map<int, int> inside_;  // the conditional nodes of bodies that nodes are in
  std::array<std::shared_ptr<event const>, 2> events_;
  std::array<allocation_place, 2> allocations_;
  std::array<library_place, 2> libraries_;
  std::vector<void*> graph_memory_;  // that launches may have left
  std::array<shared_token, 2> owners_;
  std::array<std::shared_ptr<token>, 2> shared_;
  std::vector<open_capture> captures_;
  int sweeps_ = 0;  // threads that ask for a capture's stream, which stays meanwhile
  std::list<std::unique_ptr<retired_lease>> ended_by_host_functions_;
  std::vector<std::shared_ptr<token>> survivors_;  // not taken, and work uses them
};

}  // namespace escrow::test
