// The world of a program: the library's objects in their places, and the operations on them.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <escrow/core.hpp>
#include <escrow/deleter.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/reference_set.hpp>
#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <escrow/sim.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "handles.hpp"
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

/// The number of a place of its kind, or of a way to do something.
using nth = std::size_t;

/// The type of functions that do an operation with so many places.
template <class Sequence>
struct operation_with;
template <nth... i>
struct operation_with<std::index_sequence<i...>> {
  using type = outcome(decltype(i)...);
};
template <std::size_t places>
using operation_of = typename operation_with<std::make_index_sequence<places>>::type;

/// For calls of CUDA of which the program itself sees the status.
inline void forget_error() {
  static_cast<void>(cudaGetLastError());
}

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
  /// Destroys everything, and checks that all is destroyed.
  void finish();

  [[nodiscard]] std::string const& failure() const { return all_.failure(); }
  [[nodiscard]] run_counts const& counts() const { return counts_; }

 private:
  using enum situation;
  using enum outcome;
  static constexpr std::size_t legacy_stream = 4;
  static constexpr std::size_t no_pool = ~std::size_t{0};

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
  class inside_call;
  /// What an operation uses, a bit for each place: alone, or together with others that only use it.
  struct reach {
    std::uint64_t alone = 0;
    std::uint64_t shared = 0;
  };

#define ESCROW_DECLARE(name, arguments, ...) operation_of<sizeof(arguments) - 1> do_##name;
  ESCROW_RANDOM_OPERATIONS(ESCROW_DECLARE)

  // overlap.cpp
  void reach_stream(reach& all, nth s, bool is_changed) const;
  void reach_exec(reach& all, operation const& next) const;
  [[nodiscard]] reach reach_of(operation const& next) const;
  void begin_running(operation const& next);
  void end_running(bool is_done);
  void each_outer(auto look) const;
  void note_inside(running const& outer, running const& inner);
  void note_step(std::size_t callbacks_before, std::size_t kernels_before);

  // world.cpp
  [[nodiscard]] bool has_what_is_asked(char asked, nth place, operation const& by) const;
  template <class... Place>
  outcome call(outcome (world::*operation)(Place...), std::array<std::uint8_t, 4> const& at);
  /// One call of the library, with all that it may throw. `may_refuse`: usage_error is correct, or
  /// `may_refuse_by_then` afterwards; `may_fail`: cuda_error is. Both are after a fault.
  outcome attempt(bool may_refuse, bool may_fail, std::function<void()> const& action,
                  bool const& may_refuse_by_then = false);
  void arm_fault();
  [[nodiscard]] bool disarm_fault();
  void check_captures();
  [[nodiscard]] bool is_lost() const {
    return lost_[0] || lost_[1];
  }
  void meet(situation met, bool is_so = true) {
    counts_.meet(met, is_so);
  }

  // world_checks.cpp
  void poll_until_nothing();
  [[nodiscard]] bool is_accounted_for(nth left, deleter_stats const& now) const;
  void expect_nothing_overdue();
  outcome drain_idle();
  void end_captures();
  void end_everything();
  void expect_all_gone();
  void expect_clean_machine();

  // world_streams.cpp
  [[nodiscard]] capture_state capture_at(nth s) const;
  [[nodiscard]] bool is_any_capturing() const;
  [[nodiscard]] bool is_origin(nth s) const;
  [[nodiscard]] bool is_blocked(nth s) const;
  [[nodiscard]] bool is_unusable(nth s) const;
  [[nodiscard]] bool is_own_stream(nth s) const;
  void create_stream(nth s);
  bool begin_capture_into(nth s, cudaGraph_t graph, nth g,
                          std::vector<cudaGraphNode_t> const& after);
  [[nodiscard]] bool is_beside_a_kernel(nth s) const;
  void grow_with(open_capture const& ended, contents const& captured);
  void forget_capture_into(nth g, bool is_there);
  void take_captured(open_capture const& ended, cudaGraph_t native, nth g, bool own);
  void sweep_captures();

  // world_pools.cpp
  [[nodiscard]] pool_options options_of_pools() const;
  void create_pool(nth p);
  void put_into_pool(int slot, nth pool);
  void each_slot_of(nth pool, auto look) {
    for (std::size_t i = 0; i < pool_of_slot_.size(); ++i)
      if (pool_of_slot_[i] == pool) look(static_cast<int>(i));
  }
  void leave_pool(nth p);
  [[nodiscard]] bool unpool(nth pool);
  void expect_exhausted(nth pool);
  [[nodiscard]] int thing_at(void* block, nth pool);
  void note_memory_of(std::uint64_t capture, int block);
  void leave_scratch();

  // world_leases.cpp
  void check_claimed(int slot, capture_state const& capture);
  void note_claim(lease_place& place, nth s, capture_state const& capture);
  piece_of_work& slot_piece(nth s, lease_place const& of, piece_of_work::role what);
  void use_slot_on(nth s, lease_place const& of, piece_of_work::role what);
  outcome claim(nth l, nth p, nth s, bool tries);
  [[nodiscard]] bool matches(lease_place const& held, nth s) const;
  void record_on(lease_place& place, nth s);
  void note_release(lease_place& held, nth s);
  outcome release(nth l, nth s, unsigned way);
  outcome claim_and_release_on(nth s);

  // world_owners.cpp
  static void doubt_last(contents& captured);
  void survive(token&& kept);
  void hand_to_stream(int thing, nth s, piece_of_work const& work);
  outcome retire_with(nth g, bool on_body, std::function<cudaGraph_t()> const& handle);
  outcome launch_with(int thing, nth s,
                      std::function<void(launch_config const&, piece_of_work&)> const& call);
  [[nodiscard]] int thing_of_event(nth v) const;

  // world_graphs.cpp
  void add_copy_of(nth child, contents& to);
  [[nodiscard]] bool is_usable(nth g) const;
  [[nodiscard]] cudaGraph_t handle_of(graph_place& place);
  void make_racy(entries const& needed);
  void drop_graph(nth g);
  void note_hoist(nth h, nth g, bool by_handle);

  // world_work.cpp
  piece_of_work& piece(nth s, std::vector<int> const& uses);
  void note_use(nth s, piece_of_work const& work);
  bool enqueue(nth s, piece_of_work& work, bool is_programmatic = false);
  void order(nth before, nth after);
  [[nodiscard]] bool is_in_flight(exec_place const& place) const;
  [[nodiscard]] bool is_covered(contents const& exec) const;
  void drop_exec(nth e);

  // world_nodes.cpp
  [[nodiscard]] static std::byte* arena();
  [[nodiscard]] memory_share memory_of(nth o) const;
  [[nodiscard]] bool is_there(node_place const& place) const;
  [[nodiscard]] bool is_built(nth g) const;
  [[nodiscard]] node_content with_owner(node_kind is, nth o, bool keeps, piece_of_work& work,
                                        int rounds, std::optional<std::size_t> second = {});
  [[nodiscard]] node_content with_lease(node_kind is, nth l, piece_of_work& work);
  [[nodiscard]] node_content with_code(nth y, piece_of_work& work);
  outcome note_share(nth l, outcome result);
  void note_node(nth n, nth g, node made, entries const& kept, node_kind is);
  outcome add_to_graph(nth n, nth g, node_content const& what, node const* after = nullptr);
  void free_graph_memory();

  // world_changes.cpp
  void note_set(node_place const& at, entries const& kept);
  outcome set_in_graph(nth n, node_content const& what, bool is_wrong = false);
  [[nodiscard]] bool can_be_set(node_place const& at, nth o, bool keeps) const;
  [[nodiscard]] static bool can_take(node_place const& at, lease_place const& from);
  [[nodiscard]] bool may_set(exec_place const& place, node_place const& at) const;
  outcome set_in_exec(nth e, nth n, node_content const& what);

  // world_bodies.cpp
  [[nodiscard]] bool is_body_of_a_graph(body_place const& place) const;
  [[nodiscard]] bool is_body_usable(body_place const& place) const;
  outcome add_conditional(nth b, graph_builder_ref const& at, nth g, std::uint64_t serial, nth way);
  [[nodiscard]] contents& contents_around(body_place const& place);
  void note_body_node(nth n, body_place const& at, node const& made, entries const& kept);
  outcome add_to_body(nth n, nth b, node_content const& what);
  [[nodiscard]] bool has_bodies(std::uint64_t serial) const;
  void drop_body(nth b);
  void leave_to_bodies(nth g);

  things all_;
  run_counts& counts_ = all_.counts;
  std::array<running, program::threads_max> running_;
  static thread_local running* mine_;
  program const& run_;
  planted const planted_;
  std::size_t thread_ = 0;
  bool is_careless_;           // what leaks a slot is done, too
  bool is_disturbed_ = false;  // a fault was injected: later calls may have to throw
  bool is_stopped_ = false;
  std::size_t leaked_by_hoisted_ = 0;  // that were destroyed without a release
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
  std::array<bool, 2> is_closed_{};        // or about to be
  std::array<bool, 2> was_closed_{};       // the call is over
  std::vector<std::size_t> pool_of_slot_;  // by thing
  std::optional<scratch_pool> scratch_;
  bool is_scratch_closed_ = false;
  std::array<lease_place, 4> leases_;
  std::array<graph_place, 4> graphs_;
  std::array<exec_place, 4> execs_;
  std::array<std::optional<hoisted>, 2> hoisted_;
  std::array<node_place, 6> nodes_;
  std::array<body_place, 3> bodies_;
  std::array<std::shared_ptr<event const>, 2> events_;
  std::array<allocation_place, 2> allocations_;
  std::array<library_place, 2> libraries_;
  std::vector<void*> graph_memory_;  // that launches may have left
  std::array<shared_token, 2> owners_;
  std::array<std::shared_ptr<token>, 2> shared_;
  std::vector<open_capture> captures_;
  std::vector<token> survivors_;  // not taken, and work uses them
  std::vector<std::shared_ptr<token>> surviving_shares_;
  std::vector<owned_event> recorded_;  // that releases come after
};

}  // namespace escrow::test
