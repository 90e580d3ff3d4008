// How often what happened in programs: what was never reached proves nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "program.hpp"

namespace escrow::test {

/// What became of an operation.
enum class outcome : std::uint8_t { done, refused, exhausted, failed, skipped };
inline constexpr std::size_t outcome_count = 5;

#define ESCROW_SITUATIONS(...)                                     \
  enum class situation : std::uint8_t { __VA_ARGS__, end_of_all }; \
  inline constexpr std::string_view situation_list = #__VA_ARGS__;
/// What has to occur in programs, in the words of its name. "inside": one operation ran inside a
/// call of another.
ESCROW_SITUATIONS(
    fault_injected, device_lost, claim_waited_in_its_stream, claim_added_an_edge,
    slot_claimed_again_in_its_capture, slot_of_a_graph_claimed_again, eager_slot_went_to_a_capture,
    claim_on_a_forked_stream, claim_beside_a_kernel, release_beside_a_kernel,
    lease_outlived_its_capture, owner_retired_into_a_fork, shares_gone_while_work_goes_on,
    capture_abandoned_with_things, capture_ended_by_another_thread, graph_captured_into_again,
    graph_gone_before_its_exec, exec_gone_in_flight, exec_updated_in_flight,
    exec_updated_from_a_reshaped_graph, exec_set_after_an_update, exec_set_in_flight,
    hoisted_after_changes_of_nodes, hoisted_by_handle_after_changes_of_nodes,
    handle_exposed_between_changes, lease_shared_by_two_nodes, node_changed_with_an_exec_there,
    plain_exec_launched, hoisted_graph_launched_plainly, pool_gone_with_slots_out,
    pool_closed_with_slots_in_graphs, retired_to_a_stopped_deleter, things_on_a_parent_graph,
    waited_for_a_lock, pool_closed_inside_a_claim, claim_inside_a_claim, release_inside_a_claim,
    claim_inside_a_release, pool_gone_inside_a_release, capture_begun_inside_a_claim,
    poll_inside_a_retire, poll_inside_a_poll, poll_inside_an_update, retire_inside_a_drain,
    last_share_gone_inside_a_use, launch_inside_a_launch_of_a_sibling,
    exec_gone_inside_a_launch_of_a_sibling, callback_inside_a_claim, callback_inside_an_instantiate,
    kernel_inside_a_launch, fault_among_others, memory_claimed_again_in_its_capture,
    memory_of_two_sizes_in_a_capture, memory_freed, scratch_pool_gone_with_blocks_out,
    conditional_in_a_body, owner_in_a_body, lease_in_a_body, things_on_a_child_of_a_body,
    body_captured_into, body_outlived_its_graph, conditional_exec_launched,
    conditional_exec_gone_in_flight, lease_of_memory_filled_by_a_node, copy_kept_two_owners,
    exec_set_of_another_kind, kept_event_gone, exec_with_events_launched, exec_with_memory_launched,
    memory_freed_in_another_graph, node_stays_beside_memory_nodes, allocation_failed,
    released_on_a_blocked_legacy_stream, code_dropped_while_it_runs, code_kept_by_a_node,
    code_unloaded, capture_left_by_an_exception)
inline constexpr std::size_t situation_count = static_cast<std::size_t>(situation::end_of_all);
[[nodiscard]] std::string name_of(situation met);

struct run_counts {
  std::uint64_t programs = 0;
  std::uint64_t steps = 0;
  std::uint64_t kernels = 0;
  std::uint64_t things = 0;
  std::uint64_t groups = 0;  // of operations that ran together
  std::array<std::array<std::uint64_t, outcome_count>, op_count> operations{};
  std::array<std::uint64_t, situation_count> situations{};
  // How often the second was done inside a call of the first.
  std::array<std::array<std::uint32_t, op_count>, op_count> inside{};

  void meet(situation met, bool is_so = true) {
    if (is_so) ++situations[static_cast<std::size_t>(met)];
  }
  void add(run_counts const& other);
};

/// The counts for people, a line each.
[[nodiscard]] std::string to_text(run_counts const& counted);

}  // namespace escrow::test
