// The world of a program: the library's objects in their places, and the operations on them.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <escrow/core.hpp>
#include <escrow/deleter.hpp>
#include <escrow/detail/device.hpp>
#include <escrow/detail/graph_query.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/reference_set.hpp>
#include <escrow/detail/retry_cleanup.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <escrow/sim.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "counts.hpp"
#include "handles.hpp"
#include "held_lease.hpp"
#include "places.hpp"
#include "program.hpp"
#include "things.hpp"

namespace escrow::test {

/// A fault of the test's own, to show that it is found.
enum class planted : std::uint8_t {
  none,
  owner_ends_early,     // an owner is destroyed when it should be handed over
  use_is_not_ordered,   // work on another stream does not wait for the claim
  model_forgets_execs,  // the model does not know that execs keep what their graph has
  release_noted_late,   // the model has a release from its end, not from its beginning
};

/// What: runs one program on the stepped simulator. After each operation, and inside the kernels
/// and destructors, it is checked against the reference model.
/// Thread safety: one thread at a time has the baton; operations may be under way on others.
class world {
 public:
  world(program const& run, planted bug);
  world(world&&) = delete;
  ~world();

  /// Makes an operation of a program that is not exact name the places that it means.
  void resolve(operation& next) const;
  /// Does one operation on the calling thread. Several may be under way on their threads, if
  /// may_join() said so before they began, and the baton is passed on between them.
  void perform(operation const& next);
  /// Whether `next` may run at the same time as all of `group`.
  [[nodiscard]] bool may_join(std::span<operation const> group, operation const& next) const;
  /// A group of operations was under way together.
  void note_group();
  /// Ends everything, and looks whether all has gone.
  void finish();

  [[nodiscard]] std::string const& failure() const { return all_.failure(); }
  [[nodiscard]] run_counts const& counts() const { return counts_; }

 private:
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
    bool is_shared = true;            // the object that it uses is anybody else's, too
    std::uint64_t made_of = 0;        // the graph of its exec
  };
  /// Marks a call inside of which others may go on.
  class inside_call;
  /// What an operation uses, a bit for each place: alone, or beside others who do no more.
  struct reach {
    std::uint64_t alone = 0;
    std::uint64_t shared = 0;
  };

  // overlap.cpp
  void reach_stream(reach& all, std::size_t stream, bool is_changed) const;
  void reach_exec(reach& all, operation const& next) const;
  [[nodiscard]] reach reach_of(operation const& next) const;
  void begin_running(operation const& next);
  void end_running(bool is_done);
  void note_inside(running const& outer, running const& inner);
  void note_step(std::size_t callbacks_before, std::size_t kernels_before);

  // places.cpp
  [[nodiscard]] bool has_what_is_asked(char asked, std::size_t place, operation const& by) const;

  // world.cpp
  outcome dispatch(operation const& next);
  outcome dispatch_owners(operation const& next);
  outcome dispatch_graphs(operation const& next);
  outcome dispatch_kinds(operation const& next);
  outcome dispatch_nodes(operation const& next);
  outcome dispatch_code(operation const& next);
  template <class Permission, class Action>
  outcome attempt(Permission may_refuse, bool may_fail, Action action);
  void arm_fault();
  [[nodiscard]] bool disarm_fault();
  void check_captures();
  outcome do_step(unsigned count);
  outcome do_poll();
  outcome do_settle();
  outcome do_drain();
  outcome do_stop();
  outcome do_fail_device(unsigned way);
  void poll_until_nothing();
  [[nodiscard]] bool is_accounted_for(std::size_t left, deleter_stats const& now) const;
  void expect_nothing_overdue();
  outcome drain_idle();
  [[nodiscard]] std::vector<int> due_when_settled() const;
  void expect_gone(std::vector<int> const& due);
  void end_captures();
  void end_leases();
  void expect_all_gone();
  void drop_cached_events();

  // world_streams.cpp
  [[nodiscard]] capture_state capture_at(std::size_t stream) const;
  [[nodiscard]] bool is_any_capturing() const;
  [[nodiscard]] bool is_blocked(std::size_t stream) const;
  [[nodiscard]] bool is_own_stream(std::size_t stream) const;
  bool enqueue(std::size_t stream, piece_of_work& work, bool is_programmatic = false);
  piece_of_work& piece(std::size_t stream, std::vector<int> const& uses);
  piece_of_work& slot_piece(std::size_t stream, lease_place const& of, piece_of_work::role what);
  void note_use(std::size_t stream, piece_of_work const& work);
  void use_slot_on(std::size_t stream, lease_place const& of, piece_of_work::role what);
  void order(std::size_t before, std::size_t after);
  void make_stream(std::size_t stream);
  void sweep_captures();
  outcome do_work(std::size_t stream);
  outcome do_begin(std::size_t stream, unsigned mode);
  outcome do_begin_into(std::size_t stream, std::size_t graph);
  outcome do_fork(std::size_t from, std::size_t to);
  outcome do_join(std::size_t at, std::size_t ended);
  outcome do_end(std::size_t stream, std::size_t graph, unsigned way);
  void grow_with(open_capture const& ended, contents const& captured);
  void take_captured(open_capture const& ended, cudaGraph_t native, std::size_t graph, bool own);
  outcome do_invalidate(std::size_t stream);
  outcome do_destroy_stream(std::size_t stream);

  // world_early.cpp
  [[nodiscard]] bool is_beside_a_kernel(std::size_t stream) const;
  outcome do_wait_early(std::size_t at, std::size_t of, unsigned way);

  // world_pools.cpp
  void make_pool(std::size_t pool);
  void expect_within_limit(std::size_t pool);
  outcome do_make_pool(std::size_t pool);
  outcome do_close_pool(std::size_t pool);
  outcome do_destroy_pool(std::size_t pool);
  void leave_pool(std::size_t pool);
  outcome do_claim(std::size_t lease, std::size_t pool, std::size_t stream, bool tries = false);
  void note_claim(lease_place& place, std::size_t stream, capture_state const& capture);
  [[nodiscard]] bool unpool(int pool);
  void check_claimed(int slot, capture_state const& capture);
  void expect_exhausted(std::size_t pool, capture_state const& capture);
  [[nodiscard]] bool matches(lease_place const& held, std::size_t stream) const;
  outcome do_touch(std::size_t lease, std::size_t stream);
  outcome do_release(std::size_t lease, std::size_t stream, unsigned way);
  void note_release(lease_place& held, std::size_t stream);
  outcome do_launch_lease(std::size_t lease, std::size_t stream);

  // world_owners.cpp
  outcome do_retire(std::size_t stream);
  outcome do_retire_now();
  outcome do_retire_after(std::size_t stream);
  outcome do_retire_graph(std::size_t graph);
  outcome do_own(std::size_t owner);
  outcome do_disown(std::size_t owner);
  outcome do_keep(std::size_t stream, std::size_t owner, unsigned way);
  outcome do_share(std::size_t shared);
  outcome do_use_shared(std::size_t shared, std::size_t stream);
  outcome do_unshare(std::size_t shared);
  void hand_to_stream(int thing, std::size_t stream, piece_of_work const& work);
  static void doubt_last(contents& captured);
  void survive(token&& kept);

  // world_graphs.cpp
  [[nodiscard]] cudaGraph_t handle_of(graph_place& place);
  [[nodiscard]] bool is_usable(std::size_t graph) const;
  void make_racy(entries const& needed);
  outcome do_make_graph(std::size_t graph);
  outcome do_expose(std::size_t graph);
  outcome do_clone(std::size_t to, std::size_t from, unsigned way);
  void add_copy_of(std::size_t child, contents& to);
  outcome do_child(std::size_t parent, std::size_t child, unsigned way);
  outcome do_destroy_graph(std::size_t graph);
  void drop_graph(std::size_t graph);
  outcome do_hoist(std::size_t hoisted, std::size_t graph, unsigned way);
  void note_hoist(std::size_t hoisted, std::size_t graph, bool by_handle);
  outcome do_let_go(std::size_t hoisted, std::size_t stream, unsigned way);
  outcome do_drop_hoisted(std::size_t hoisted);

  // world_execs.cpp
  outcome do_instantiate(std::size_t exec, std::size_t graph, unsigned way);
  outcome do_launch(std::size_t exec, std::size_t stream, unsigned way);
  [[nodiscard]] bool is_covered(contents const& exec) const;
  outcome do_update(std::size_t exec, std::size_t graph, unsigned way);
  void note_update(std::size_t exec, std::size_t graph, entries const& before);
  outcome do_destroy_exec(std::size_t exec);
  void drop_exec(std::size_t exec);
  [[nodiscard]] bool is_in_flight(exec_place const& place) const;

  // world_nodes.cpp
  [[nodiscard]] bool is_there(node_place const& place) const;
  void drop_nodes_of(std::size_t graph);
  outcome do_add_node(std::size_t node, std::size_t graph, std::size_t owner, unsigned way);
  outcome do_add_node_of_lease(std::size_t node, std::size_t graph, std::size_t lease);
  void note_node(std::size_t at, std::size_t graph, node made, entries const& kept, node_kind is);
  outcome do_set_node(std::size_t node, std::size_t owner, unsigned way);
  outcome do_set_node_of_lease(std::size_t node, std::size_t lease);
  [[nodiscard]] entries begin_set(node_place const& at);
  void end_set(node_place const& at, entries const& old, bool is_done);
  [[nodiscard]] bool can_be_set(node_place const& at, std::size_t owner, bool keeps) const;
  template <class Setter>
  void set_with(Setter const& to, node_place const& at, std::size_t owner, bool keeps,
                piece_of_work& work, std::optional<token>& callable);
  template <class Setter>
  static void set_with_lease(Setter const& to, node_place const& at, lease_place& from,
                             piece_of_work& work);
  [[nodiscard]] static bool can_take(node_place const& at, lease_place const& from);
  [[nodiscard]] entries kept_by(node_place const& at, std::size_t owner,
                                std::optional<token> const& callable, piece_of_work& work) const;
  void note_set(node_place const& at, entries const& kept);
  outcome do_destroy_node(std::size_t node);
  outcome do_exec_set(std::size_t exec, std::size_t node, std::size_t owner);
  outcome do_exec_set_of_lease(std::size_t exec, std::size_t node, std::size_t lease);
  [[nodiscard]] bool may_set(exec_place const& place, node_place const& at) const;
  [[nodiscard]] static bool is_replaced(node_place const& at, entry const& each);
  [[nodiscard]] entries begin_exec_set(std::size_t exec, node_place const& at);
  void end_exec_set(std::size_t exec, node_place const& at, entries const& old, entries const& kept,
                    bool is_done);
  entries use_owner(std::size_t owner, std::optional<token> const& callable,
                    piece_of_work& work) const;
  entries share_slot(lease_place& of, piece_of_work& work);

  // world_scratch.cpp
  outcome do_claim_scratch(std::size_t lease, std::size_t size, std::size_t stream);
  [[nodiscard]] int thing_at(void* block, std::size_t size);
  void note_memory_of(std::uint64_t capture, int block);
  outcome do_close_scratch();
  outcome do_destroy_scratch();
  void leave_scratch();
  template <class Kept, class IsThere>
  void notice_ends_of(Kept& kept, IsThere is_there, situation met);
  void notice_ends();

  // world_bodies.cpp
  [[nodiscard]] bool is_body_of_a_graph(body_place const& place) const;
  [[nodiscard]] bool is_body_usable(body_place const& place) const;
  [[nodiscard]] contents& contents_around(body_place const& place);
  outcome add_conditional(std::size_t body, graph_builder_ref const& at, std::size_t graph,
                          std::uint64_t serial, unsigned way);
  outcome do_add_conditional(std::size_t body, std::size_t graph, unsigned way);
  outcome do_add_conditional_inside(std::size_t body, std::size_t outer, unsigned way);
  void note_body_node(std::size_t node, body_place const& at, escrow::node const& made,
                      entries const& kept);
  outcome do_add_body_node(std::size_t node, std::size_t body, std::size_t owner, unsigned way);
  outcome do_add_body_node_of_lease(std::size_t node, std::size_t body, std::size_t lease);
  outcome do_embed_in_body(std::size_t body, std::size_t child);
  outcome do_capture_into_body(std::size_t stream, std::size_t body, unsigned way);
  outcome claim_and_release_on(std::size_t stream);
  outcome retire_with_body(body_place const& at, cudaGraph_t body);
  void drop_body(std::size_t body);
  outcome do_drop_body(std::size_t body);
  void leave_to_bodies(std::size_t graph);

  // world_kinds.cpp
  [[nodiscard]] static std::byte* arena();
  [[nodiscard]] memory_share memory_of(std::size_t owner) const;
  [[nodiscard]] entries owners_of(std::size_t one, std::size_t other) const;
  outcome do_add_fill(std::size_t node, std::size_t graph, std::size_t owner, unsigned way);
  outcome do_add_fill_of_lease(std::size_t node, std::size_t graph, std::size_t lease);
  [[nodiscard]] static node fill_of(graph_builder_ref const& at, lease<device_block>& held);
  [[nodiscard]] static node fill_of(graph_builder_ref const& at, lease<token>& held);
  outcome do_add_copy(std::size_t node, std::size_t graph, std::size_t to, std::size_t from);
  outcome do_add_join(std::size_t node, std::size_t graph);
  [[nodiscard]] std::vector<node> known_nodes_of(std::size_t graph) const;
  outcome do_add_edge(std::size_t one, std::size_t other);
  outcome do_make_event(std::size_t event);
  [[nodiscard]] int thing_of_event(std::size_t event) const;
  outcome do_drop_event(std::size_t event);
  outcome do_add_event(std::size_t node, std::size_t graph, std::size_t event, unsigned way);
  outcome do_add_alloc(std::size_t allocation, std::size_t graph, std::size_t size);
  outcome do_add_free(std::size_t allocation, std::size_t graph);
  void free_graph_memory();
  outcome do_look(std::size_t graph);
  void read_back(node_place const& at);

  // world_code.cpp
  outcome do_load_library(std::size_t library);
  outcome do_unload_library(std::size_t library);
  outcome do_launch_code(std::size_t stream, std::size_t library);
  outcome do_add_node_of_code(std::size_t node, std::size_t graph, std::size_t library);
  outcome do_set_node_of_code(std::size_t node, std::size_t library);
  outcome do_exec_set_of_code(std::size_t exec, std::size_t node, std::size_t library);
  outcome do_upload(std::size_t exec, std::size_t stream);
  outcome do_capture_call(std::size_t stream, std::size_t graph, unsigned way);
  outcome do_move(std::size_t graph, std::size_t exec);

  things all_;
  run_counts counts_;
  std::array<running, program::threads_max> running_;
  static thread_local running* mine_;
  program const& run_;
  planted const planted_;
  std::size_t thread_ = 0;
  bool is_careless_;           // things that cost a slot for ever are done too
  bool is_disturbed_ = false;  // a fault was injected: later calls may have to throw
  bool is_stopped_ = false;
  std::size_t kept_for_ever_ = 0;      // by hoisteds that just ended
  std::size_t deferred_releases_ = 0;  // of leases that may have ended where nothing was recorded
  std::array<bool, 2> lost_{};
  sim::counts at_begin_;
  bool was_empty_ = graph_registry::global().is_empty();
  std::uint64_t fault_calls_ = 0;
  std::uint64_t invalidated_ = 0;  // captures, on purpose
  std::uint64_t serials_ = 0;
  int node_ids_ = 0;

  std::unique_ptr<deleter> worker_;
  std::array<stream_place, 6> streams_;
  std::array<std::unique_ptr<resource_pool<token>>, 2> pools_;
  std::array<bool, 2> is_closed_{};   // or about to be
  std::array<bool, 2> was_closed_{};  // the call is over
  std::vector<int> pool_of_slot_;     // by thing; -1: none
  std::optional<scratch_pool> scratch_;
  bool is_scratch_closed_ = false;
  std::map<void*, int> blocks_;  // that are there, and their things
  std::array<lease_place, 4> leases_;
  std::array<graph_place, 4> graphs_;
  std::array<exec_place, 4> execs_;
  std::array<std::optional<hoisted>, 2> hoisted_;
  std::array<node_place, 6> nodes_;
  std::array<body_place, 3> bodies_;
  std::array<std::shared_ptr<event const>, 2> events_there_;
  std::map<cudaEvent_t, int> kept_events_;  // that are there, and their things
  std::map<cudaEvent_t, std::weak_ptr<event const>> event_shares_;
  std::array<allocation_place, 2> allocations_;
  std::array<library_place, 2> libraries_;
  std::map<void const*, int> kept_code_;  // kernels whose libraries are there, and their things
  std::map<void const*, std::weak_ptr<loaded_library const>> code_shares_;
  std::vector<void*> graph_memory_;  // that launches may have left
  std::array<shared_token, 2> owners_;
  std::array<std::shared_ptr<token>, 2> shared_;
  std::vector<open_capture> captures_;
  std::vector<token> survivors_;  // not taken, and work uses them
  std::vector<std::shared_ptr<token>> surviving_shares_;
  std::vector<owned_event> events_;
};

}  // namespace escrow::test
