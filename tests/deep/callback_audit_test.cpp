// Destroy callbacks of everything that puts user objects on graphs, a million and more of them, on
// the thread that destroys the graph and on CUDA's own: no CUDA call, no allocation, no lock, and
// not one voluntary context switch. CallbackLaw has the test of the watch itself.
#include <escrow/nodes.hpp>
#include <string>
#include <vector>

#include "callback_watch.hpp"
#include "deep.hpp"
#include "world.hpp"

namespace escrow {

// A block is given to kernels as a cell.
template <>
struct kernel_argument_traits<test::block> {
  static int* device_value(test::block const& from) { return from.data(); }
};

namespace test {
namespace {

/// What put its user objects on a graph.
struct holding {
  char const* name;
  bool is_built = false;  // by hand: a graph has one user object for all
};
constexpr holding holdings[] = {{"owners"},         {"kept_arguments"}, {"pool_slots"},
                                {"shared_objects"}, {"bundles", true},  {"shared_leases", true}};

class CallbackAudit : public world, public testing::WithParamInterface<holding> {
 protected:
  static constexpr int slots_a_graph = 64;

  [[nodiscard]] static std::uint64_t wanted() {
    if (is_sanitized) return GetParam().is_built ? 50 : 2'000;
    return GetParam().is_built ? deep_size<std::uint64_t>(500, 100'000)
                               : deep_size<std::uint64_t>(20'000, 1'000'000);
  }
  [[nodiscard]] static bool holds(char const* what) { return std::string(GetParam().name) == what; }

  [[nodiscard]] owned_graph made_graph() {
    if (GetParam().is_built) return built();
    if (!holds("owners")) return captured_plainly([this](cudaStream_t on) { enqueue(on); });
    owned_graph graph = tiny_graph();
    for (int i = 0; i < 1000; ++i) worker->retire(graph.get(), std::make_unique<int>());
    return graph;
  }
  void enqueue(cudaStream_t on) {
    std::vector<block_lease> leases;
    for (int i = 0; i < slots_a_graph; ++i) {
      if (holds("pool_slots")) {
        leases.push_back(pool->claim(on));
      } else if (holds("shared_objects")) {
        auto const shared = make_stream_shared_by<int>(*worker);
        must(launch_tiny(on));
        record_stream(shared, on);
      } else {
        escrow::launch(on, add, {.deleter = worker.get()}, shared_cell(), 1);
      }
    }
    must(launch_tiny(on));
  }
  [[nodiscard]] owned_graph built() {
    graph by_hand(*worker);
    for (int i = 0; i < 8; ++i) {
      if (holds("bundles")) {
        build(by_hand).add(kernel_node(add, {}, shared_cell(), 1));
      } else {
        block_lease held = pool->claim(two.get());
        build(by_hand).add(kernel_node(add, {}, held, 1));
      }
    }
    return owned_graph(by_hand.detach());
  }
  [[nodiscard]] std::shared_ptr<int> shared_cell() {
    return {cells.data(), [owned = std::make_unique<int>()](int*) {}};
  }

  /// Makes graphs, which `end` destroys, until there were enough callbacks.
  template <class End>
  callback_deeds audit(char const* where, End const& end) {
    pool_options chosen = options(4 * slots_a_graph);
    chosen.host_wait_max = generous;
    pool.emplace(make_pool(chosen));
    forget_deeds();
    for (int round = 1; deeds_in_callbacks().callbacks < wanted(); ++round) {
      end(made_graph(), round);
    }
    EXPECT_TRUE(wait_until([this] { return drained() && worker->stats().in_graphs == 0; },
                           std::chrono::seconds(60)));
    callback_deeds const deeds = deeds_in_callbacks();
    pool.reset();
    figures found(std::string("callback_audit_") + GetParam().name + "_" + where);
    found.add("callbacks", deeds.callbacks);
    found.add("of them on other threads than the caller's", deeds.elsewhere);
    found.add("CUDA calls", deeds.cuda_calls);
    found.add("allocations", deeds.allocations);
    found.add("locks", deeds.locks);
    found.add("system calls", deeds.system_calls);
    found.add("voluntary context switches", deeds.switches);
    found.write();
    EXPECT_GE(deeds.callbacks, wanted());
    EXPECT_EQ(deeds.cuda_calls + deeds.allocations + deeds.locks, 0U);
    EXPECT_LE(deeds.system_calls, deeds.callbacks) << "one wake-up each at most";
    // A sanitizer's own locks may sleep.
    EXPECT_EQ(is_sanitized ? 0U : deeds.switches, 0U);
    return deeds;
  }

  kernel const add{kernel_address(kernel_id::add)};
  std::optional<block_pool> pool;
};

TEST_P(CallbackAudit, FindsNothingOnTheThreadThatDestroysTheGraph) {
  callback_deeds const deeds = audit("caller", [](owned_graph graph, int) { graph.reset(); });
  EXPECT_EQ(deeds.elsewhere, 0U);
}

TEST_P(CallbackAudit, FindsNothingOnCudasOwnThreadForExecsThatAreDestroyedInFlight) {
  callback_deeds const deeds = audit("cuda", [this](owned_graph graph, int round) {
    must(launch_sleep(two, 50));
    owned_exec exec = instantiate(graph);
    must(cudaGraphLaunch(exec, two));
    graph.reset();
    exec.reset();
    if (round % 8 == 0) sync(two);
  });
  EXPECT_GT(deeds.elsewhere, deeds.callbacks / 2) << "hardly any were on CUDA's thread";
}

INSTANTIATE_TEST_SUITE_P(Of, CallbackAudit, testing::ValuesIn(holdings),
                         [](auto const& given) { return given.param.name; });

}  // namespace
}  // namespace test
}  // namespace escrow
