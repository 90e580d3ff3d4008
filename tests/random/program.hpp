// SPDX-License-Identifier: Apache-2.0
// A random program: operations of several threads, in a form that people can read; and what is
// counted when programs run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace escrow::test {

/// All operations: the name; the arguments, a letter each, see letter_of(); the weight in programs
/// of all kinds; and whether a CUDA call or an allocation in it may be made to fail, whether it may
/// run together with operations of other threads, and whether it looks itself which of its places
/// have what it needs, or `builds`: its second is a graph that nodes with owners can be added to.
/// world::do_<name>() does it. Objects have fixed places, so that an operation means the same when
/// others are taken away; one whose places are empty, or occupied where they must be empty, does
/// nothing.
#define ESCROW_RANDOM_OPERATIONS(X)                            \
  /* the machine and the worker */                             \
  X(step, "k", 14, together)                                   \
  X(work, "s", 8, together)                                    \
  X(poll, "", 10, fails | together)                            \
  X(settle, "", 2, 0)                                          \
  X(drain, "", 1, together)                                    \
  X(stop, "", 1, 0)                                            \
  X(fail_device, "w", 1, 0)                                    \
  /* pools */                                                  \
  X(claim, "Lps", 14, fails | together)                        \
  X(claim_captured, "Lpc", 6, fails | together | looks)        \
  X(touch, "ls", 6, fails | together)                          \
  X(release, "l", 5, fails | together)                         \
  X(release_on, "ls", 4, fails | together)                     \
  X(drop_lease, "l", 3, fails | together)                      \
  X(close_pool, "p", 1, fails | together)                      \
  X(destroy_pool, "p", 1, fails | together)                    \
  X(make_pool, "P", 1, fails | together)                       \
  /* owners */                                                 \
  X(retire, "s", 6, fails | together)                          \
  X(retire_now, "", 1, fails | together)                       \
  X(retire_after, "i", 2, fails | together)                    \
  X(retire_graph, "g", 2, fails | together)                    \
  X(own, "O", 6, together)                                     \
  X(disown, "o", 3, together)                                  \
  X(keep, "sow", 4, fails | together | looks)                  \
  X(launch_lease, "ls", 3, fails | together)                   \
  X(retire_lease, "lsw", 3, fails | together)                  \
  X(share, "X", 3, fails | together)                           \
  X(use_shared, "xs", 5, fails | together)                     \
  X(unshare, "x", 2, together)                                 \
  /* captures */                                               \
  X(begin, "im", 5, together)                                  \
  X(begin_into, "ig", 2, together)                             \
  X(fork, "ci", 6, together)                                   \
  X(join, "cc", 5, together)                                   \
  X(wait_early, "scw", 6, together)                            \
  X(end, "rGw", 10, together | looks)                          \
  X(invalidate, "c", 1, together)                              \
  X(destroy_stream, "s", 1, together)                          \
  /* graphs and execs */                                       \
  X(make_graph, "G", 5, fails | together)                      \
  X(expose, "g", 2, fails | together)                          \
  X(clone, "Ggw", 4, fails | together)                         \
  X(child, "ggw", 4, fails | together)                         \
  X(destroy_graph, "g", 4, together)                           \
  X(instantiate, "Egw", 9, fails | together)                   \
  X(launch, "eiw", 14, fails | together)                       \
  X(update, "euw", 6, fails | together)                        \
  X(destroy_exec, "e", 6, together)                            \
  X(hoist, "Hgw", 3, fails | together)                         \
  X(let_go, "hiw", 4, fails | together)                        \
  X(drop_hoisted, "h", 1, together)                            \
  X(enter, "hiw", 4, fails | together)                         \
  X(launch_in_turn, "tdw", 6, fails | together)                \
  X(leave, "t", 5, fails | together | looks)                   \
  X(launch_hoisted, "hdiw", 6, fails | together)               \
  X(set_add, "Fg", 4, fails)                                   \
  X(set_launch, "fi", 6, fails)                                \
  X(drop_set, "", 1, fails)                                    \
  X(bind, "ei", 3, fails | together)                           \
  X(launch_bound, "ew", 6, fails | together)                   \
  X(flush, "e", 2, fails | together)                           \
  X(unbind, "e", 1, fails | together)                          \
  /* nodes */                                                  \
  X(add_node, "Ngow", 10, fails | together | looks)            \
  X(add_node_of_lease, "Ngl", 5, fails | together | builds)    \
  X(set_node, "now", 5, fails | together | looks)              \
  X(set_node_of_lease, "nl", 3, fails | together)              \
  X(destroy_node, "n", 3, fails | together)                    \
  X(exec_set, "eqo", 6, fails | together | looks)              \
  X(exec_set_of_lease, "eql", 3, fails | together)             \
  X(set_enabled, "eqw", 6, fails | together | looks)           \
  X(add_child_node, "Ngg", 5, fails | together | builds)       \
  X(set_child_node, "ngw", 4, fails | together | looks)        \
  X(exec_set_child, "eqgw", 4, fails | together | looks)       \
  X(add_kernel_with, "Ngow", 4, fails | together | builds)     \
  X(set_kernel_with, "now", 3, fails | together | looks)       \
  X(exec_set_kernel_with, "eqow", 3, fails | together | looks) \
  /* scratch memory */                                         \
  X(claim_scratch, "Lzs", 10, fails)                           \
  X(leave_to_graph, "l", 6, fails | together | looks)          \
  X(trim, "w", 5, fails | together)                            \
  X(close_scratch, "", 1, fails)                               \
  X(destroy_scratch, "", 1, fails)                             \
  /* conditional nodes and bodies */                           \
  X(add_conditional, "Bgw", 6, fails | builds)                 \
  X(add_conditional_inside, "Bbw", 2, fails)                   \
  X(add_body_node, "Nbow", 7, fails | looks)                   \
  X(add_body_node_of_lease, "Nbl", 4, fails)                   \
  X(embed_in_body, "bg", 2, fails)                             \
  X(capture_into_body, "ibw", 3, fails)                        \
  X(drop_body, "b", 3, looks)                                  \
  X(destroy_conditional, "b", 3, fails)                        \
  /* nodes of other kinds */                                   \
  X(add_fill, "Ngow", 4, fails | together | builds)            \
  X(add_fill_of_lease, "Ngl", 3, fails | together | builds)    \
  X(add_copy, "Ngoo", 4, fails | together | builds)            \
  X(add_join, "Ng", 2, fails | together | builds)              \
  X(add_edge, "nn", 2, fails | together)                       \
  X(make_event, "V", 3, fails)                                 \
  X(drop_event, "v", 2, 0)                                     \
  X(add_event, "Ngvw", 5, fails | builds)                      \
  X(add_alloc, "Agz", 2, fails | builds)                       \
  X(add_free, "ag", 2, fails | builds)                         \
  X(look, "g", 1, fails)                                       \
  /* code, and other calls */                                  \
  X(load_library, "Y", 3, fails)                               \
  X(load_foreign, "Y", 3, fails)                               \
  X(unload_library, "y", 2, 0)                                 \
  X(launch_code, "sy", 4, fails)                               \
  X(add_node_of_code, "Ngy", 4, fails | builds)                \
  X(set_node_of_code, "ny", 2, fails)                          \
  X(exec_set_of_code, "eqy", 2, fails)                         \
  X(upload, "ei", 2, fails)                                    \
  X(capture_call, "iGw", 2, fails)                             \
  X(move, "ge", 1, looks)                                      \
  X(try_claim, "Lps", 3, fails | together)                     \
  /* claimers */                                               \
  X(make_claimer, "Jps", 8, fails | together)                  \
  X(make_scratch_claimer, "Js", 3, fails)                      \
  X(claim_on, "Ljzw", 20, fails | together)                    \
  X(begin_on, "jgmw", 4, looks)                                \
  X(flush_claims, "j", 3, fails | together)                    \
  X(end_claimer, "j", 3, fails | together)                     \
  /* what users write */                                       \
  X(visit, "ls", 5, fails | together)                          \
  X(read, "ls", 5, fails)                                      \
  X(retire_both, "llsw", 5, fails | together)                  \
  X(end_in_host_function, "ls", 3, together)                   \
  X(capture_output, "iGLw", 5, fails)                          \
  X(read_stats, "pw", 3, together)                             \
  X(stage, "Lps", 5, fails | together)

#define ESCROW_ENUMERATOR(name, ...) name,
enum class op : std::uint8_t { ESCROW_RANDOM_OPERATIONS(ESCROW_ENUMERATOR) count };
inline constexpr std::size_t op_count = static_cast<std::size_t>(op::count);

struct op_spec {
  std::string_view name;
  std::string_view arguments;
  unsigned weight;
  unsigned traits;
  static constexpr unsigned fails = 1;
  static constexpr unsigned together = 2;
  static constexpr unsigned looks = 4;
  static constexpr unsigned builds = 8;
  [[nodiscard]] constexpr bool can_fail() const { return (traits & fails) != 0; }
  [[nodiscard]] constexpr bool looks_itself() const { return (traits & looks) != 0; }
  [[nodiscard]] constexpr bool must_be_built() const { return (traits & builds) != 0; }
  [[nodiscard]] constexpr bool may_overlap() const { return (traits & together) != 0; }
};
[[nodiscard]] op_spec const& spec_of(op kind);
/// Throws std::runtime_error if there is none.
[[nodiscard]] op op_named(std::string_view name);

/// How many places there are of each kind, by the letter that stands for it in the text form:
/// 6 streams, of which s3 is of device 1, s4 the legacy one and s5 the thread's own, and nodes;
/// 4 graphs, execs, members of the exec_set (f), leases, ways to do it and sizes of memory; 3
/// capture modes, bodies and claimers (j); 2 pools, hoisteds, owners of nodes and launches, objects
/// of make_stream_shared() (x), libraries (y), events (v) and allocations of graphs; up to 16 steps
/// (k).
[[nodiscard]] constexpr unsigned places_of(char letter) {
  auto const is_one_of = [letter](std::string_view all) { return all.find(letter) < all.size(); };
  if (is_one_of("sn")) return 6;
  if (is_one_of("gelwzf")) return 4;
  if (is_one_of("mbj")) return 3;
  return letter == 'k' ? 16 : 2;
}

/// The kind of place that an argument asks for. A capital asks for an empty one; 'c' for a stream
/// that is captured, 'r' one that a capture began on, 'i' one that is not captured; 'q' for a node
/// of the graph that the exec in the first argument was created from, 'u' for that graph; 't' for a
/// hoisted between enter() and leave(), 'd' for an exec of the graph of the one in the first
/// argument.
[[nodiscard]] constexpr char letter_of(char asked) {
  if (asked == 'c' || asked == 'r' || asked == 'i') return 's';
  if (asked == 'q') return 'n';
  if (asked == 'u') return 'g';
  if (asked == 't') return 'h';
  if (asked == 'd') return 'e';
  return asked >= 'A' && asked <= 'Z' ? static_cast<char>(asked - 'A' + 'a') : asked;
}

struct operation {
  static constexpr std::uint8_t none_fails = 255;  // an allocation; they are only counted

  op kind = op::step;
  std::uint8_t thread = 0;
  std::array<std::uint8_t, 4> arguments{};
  std::uint8_t failing_call = 0;        // the CUDA call of the operation that fails; 0: none
  std::uint8_t failing_allocation = 0;  // the same of the library's allocations
  bool joins = false;                   // it runs together with the one before, if both may
  std::uint64_t passes = 0;             // its switch points at which others go on: see baton

  bool operator==(operation const&) const = default;
};

struct program {
  static constexpr std::size_t threads_max = 3;

  std::uint64_t seed = 1;         // of the machine's choices
  std::uint64_t slots = 2;        // of each pool
  bool shares = false;            // the pools are in one sharing group
  bool lasts = false;             // the streams outlive the pools that they are given to
  std::uint64_t unrecorded = 16;  // pool_options::unrecorded_max
  bool addresses = false;         // scratch memory is a stream_allocator's, freed by its address
  std::uint64_t bytes = 0;        // scratch_policy::bytes_max; 0: no limit
  bool idles = false;             // each claim of scratch memory looks for blocks that are not used
  std::vector<operation> operations;
  // Whether an operation means the places that it names. If not, it means the next ones that have
  // what it needs, so that drawn programs do more. Not part of the text form, which is exact.
  bool is_exact = true;

  bool operator==(program const&) const = default;
};

/// The program of a seed: some kinds of operations are left out, others are frequent, by the seed.
[[nodiscard]] program generate(std::uint64_t seed);
/// The program that bytes stand for: any bytes are one.
[[nodiscard]] program decode(std::span<std::uint8_t const> bytes);

/// One operation a line. The thread of most, t0, is left out.
[[nodiscard]] std::string to_text(program const& written);
[[nodiscard]] std::string to_text(operation const& written);
struct run_counts;
[[nodiscard]] std::string to_text(run_counts const& counted);
/// Reads what to_text() wrote; ';' ends a line, too, '#' begins a comment. Throws
/// std::runtime_error with the line.
[[nodiscard]] program read_program(std::string_view text);

/// A fault of the test's own, to show that it is found.
enum class planted : std::uint8_t {
  none,
  owner_ends_early,     // an owner is destroyed when it should be handed over
  use_is_not_ordered,   // work on another stream does not wait for the claim
  model_forgets_execs,  // the model does not know that execs keep what their graph has
  release_noted_late,   // the model has a release from its end, not from its beginning
};

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
    node_read_with_its_owner, exec_set_of_another_kind, kept_event_gone, exec_with_events_launched,
    exec_with_memory_launched, row_launched, memory_freed_in_another_graph,
    node_stays_beside_memory_nodes, allocation_failed, released_on_a_blocked_legacy_stream,
    code_dropped_while_it_runs, code_kept_by_a_node, code_unloaded, capture_left_by_an_exception,
    graphs_shared_an_exec, set_has_several_execs, set_switched_in_flight, set_gone_in_flight,
    slot_shared_by_graphs, memory_of_a_larger_size_shared, concurrent_branches_refused,
    copies_that_race_refused, claims_of_a_capture_twice_in_a_graph, entered_behind_another_stream,
    launched_in_turn, exec_of_escrow_launched_in_turn, hoisted_launched_in_one_call,
    refused_by_its_own_turn, refused_by_a_turn_of_another_thread, left_inside_a_launch,
    left_inside_an_enter, graph_gone_in_its_turn, hoisted_gone_in_its_turn,
    slot_shared_after_let_go, launcher_left_its_launches_due, launch_refused_behind_a_launcher,
    launched_after_a_flush, launcher_gone_in_flight, launcher_called_on_another_thread,
    sibling_launched_inside_a_launch_of_a_launcher, launcher_refused_in_a_turn,
    enter_refused_behind_a_launcher, entered_behind_a_launcher_on_its_stream,
    launcher_flushed_in_a_turn, slot_claimed_again_by_its_claimer,
    slot_of_a_claimer_went_to_another_stream, slot_of_a_claimer_went_to_a_capture,
    claimer_claimed_in_a_capture, claimer_ended_in_a_capture, claimer_outlived_its_pool,
    lease_outlived_its_claimer, lease_of_a_claimer_released_in_a_capture,
    release_inside_a_claim_of_a_claimer, claimer_gone_inside_a_claim, graph_launched_between_claims,
    memory_claimed_again_by_its_claimer, slot_claimed_again_on_a_lasting_stream,
    lasting_streams_left_by_their_pool, address_freed_on_another_stream,
    address_freed_after_its_capture, address_freed_in_another_capture, address_not_freed_when_told,
    memory_left_to_its_capture, memory_left_after_its_capture, leaving_refused_after_later_use,
    leaving_inside_the_end_of_a_graph, allocator_gone_before_its_graph, allocator_gone_with_leaks,
    worker_defers_a_lease, worker_leaves_a_lease_to_its_graph, memory_trimmed,
    trim_left_what_is_in_use, trim_kept_what_it_was_told, release_inside_a_trim,
    trim_inside_a_release, claim_freed_memory_of_another_size, claim_found_no_room_below_the_limit,
    memory_given_back_unused, lease_kept_by_a_later_graph, lease_of_a_capture_kept_by_a_later_graph,
    used_in_no_order_with_the_claim, used_in_no_order_with_the_claim_in_a_capture,
    output_read_after_its_capture, output_outlived_its_stream, lease_ended_in_another_capture,
    worker_ends_a_covered_lease, worker_ends_a_recorded_lease, two_leases_of_a_request,
    lease_accessed_after_its_retirement, lease_ended_by_a_host_function, host_got_a_used_slot,
    node_disabled_in_flight, node_enabled_again, node_set_while_it_is_disabled,
    disabled_node_asked_after_an_update, launched_with_a_disabled_node,
    launched_with_a_disabled_node_after_an_update, launched_without_a_node_whose_things_are_gone,
    exec_with_copies_updated_with_a_disabled_node, node_of_another_kind_not_disabled,
    child_replaced, child_replaced_beside_its_exec, child_with_things_replaced,
    child_replaced_in_an_exec, child_replaced_in_an_exec_in_flight,
    child_with_things_replaced_in_an_exec, graph_not_put_into_itself, kernel_added_with_attributes,
    kernel_set_with_attributes, attributes_refused, attributes_refused_in_an_exec,
    clusters_stay_in_an_exec, update_refused_for_its_clusters, foreign_code_kept_by_a_node,
    foreign_code_dropped_while_it_runs, foreign_code_unloaded, conditional_destroyed,
    conditional_with_things_destroyed, conditional_destroyed_in_flight,
    conditional_destroyed_with_another_inside, condition_of_a_destroyed_node_used)
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
  std::vector<std::uint64_t> allocations;  // in each call of which one was to fail; not added up

  /// `times`: 1 if it is so.
  void meet(situation met, std::uint64_t times = 1) {
    situations[static_cast<std::size_t>(met)] += times;
  }
  void add(run_counts const& other);
};

struct verdict {
  std::string failure;  // empty: none
  std::size_t at = 0;   // the operation after which it was seen; their number: the end
  run_counts counts;
  program exact;  // with the places that were meant
};

/// Runs it on the calling thread and, for the operations of other threads, on those. Calls `before`
/// with each operation before it is done, if it is not empty.
[[nodiscard]] verdict run(program const& given, planted bug = planted::none,
                          std::function<void(operation const&)> const& before = {});

/// The same in a child process, so that a crash is a failure, too. Only in a process in which
/// nothing ran before: threads do not come along.
[[nodiscard]] verdict run_in_child(program const& given);

/// From now on a crash says which program it was, and how to repeat it.
void announce_crashes();

/// Takes operations away as long as `fails` says that it fails.
[[nodiscard]] program shrink(program const& failing,
                             std::function<bool(program const&)> const& fails);

/// What a person needs: the failure, the seed, the command, and the shrunk program.
[[nodiscard]] std::string describe(program const& failing, verdict const& seen,
                                   std::function<verdict(program const&)> const& runner);

}  // namespace escrow::test
