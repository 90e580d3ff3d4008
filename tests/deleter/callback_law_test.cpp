// SPDX-License-Identifier: Apache-2.0
// The law of destroy callbacks: no CUDA call, no allocation, no lock and no wait, however far
// behind the worker is. And an audit of everything that puts user objects on graphs, a million and
// more callbacks, on the thread that destroys the graph and on CUDA's own.
#include <unistd.h>

#include <sys/syscall.h>

#include <escrow/nodes.hpp>
#include <mutex>
#include <new>

#include "callback_watch.hpp"
#include "deep.hpp"
#include "world.hpp"

namespace escrow::test {
namespace {

void expect_clean(callback_deeds const& deeds) {
  EXPECT_EQ(deeds.allocations, 0U);
  EXPECT_EQ(deeds.locks, 0U);
  EXPECT_EQ(deeds.cuda_calls, 0U);
  // A sanitizer's own locks may sleep.
  EXPECT_EQ(is_sanitized ? 0U : deeds.switches, 0U);
}

class CallbackLaw : public world {
 protected:
  struct count_up {
    void operator()(std::atomic<int>* it) const { it->fetch_add(1, std::memory_order_release); }
  };

  void SetUp() override { forget_deeds(); }
  [[nodiscard]] owned_graph graph_with(int owners) {
    owned_graph graph = tiny_graph();
    for (int i = 0; i < owners; ++i)
      worker->retire(graph.get(), std::unique_ptr<std::atomic<int>, count_up>(&destroyed));
    return graph;
  }
  [[nodiscard]] bool are_destroyed(int owners) {
    return wait_until([&] { return destroyed.load(std::memory_order_acquire) == owners; },
                      std::chrono::seconds(60));
  }

  std::atomic<int> destroyed{0};
};

// First the watch itself: it must see what it is there to see.
TEST_F(CallbackLaw, TheWatchSeesEachForbiddenDeed) {
  // Not by new, which a compiler may leave out.
  misbehave_in_callback([] { ::operator delete(::operator new(16)); });
  EXPECT_GT(deeds_in_callbacks().allocations, 0U);
  misbehave_in_callback([] {
    static std::mutex mutex;
    std::lock_guard const lock(mutex);
  });
  EXPECT_GT(deeds_in_callbacks().locks, 0U);
  misbehave_in_callback([] { static_cast<void>(::syscall(SYS_gettid)); });
  EXPECT_GT(deeds_in_callbacks().system_calls, 0U);
  misbehave_in_callback([] { static_cast<void>(cudaEventQuery(nullptr)); });
  EXPECT_GT(deeds_in_callbacks().cuda_calls, 0U);
  static_cast<void>(cudaGetLastError());
  misbehave_in_callback([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  EXPECT_GT(deeds_in_callbacks().switches, 0U);
  EXPECT_EQ(deeds_in_callbacks().callbacks, 5U);
}

TEST_F(CallbackLaw, ASleepingWorkerIsWokenByAtMostOneSystemCallACallback) {
  for (int round = 1; round <= 20; ++round) {
    // The worker sleeps a millisecond after its last work.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    forget_deeds();
    static_cast<void>(graph_with(1));
    EXPECT_TRUE(are_destroyed(round));
    EXPECT_LE(deeds_in_callbacks().system_calls, 1U);
    expect_clean(deeds_in_callbacks());
  }
}

// A queue that is long, or a worker that was blocked for long, is no reason to allocate or to wait.
TEST_F(CallbackLaw, HoldsWhileTheWorkerIsBlockedAndManyOwnersArePending) {
  constexpr int graphs = 20;
  int const owners_each = is_sanitized ? 2'000 : deep_size(2'500, 50'000);
  int const owners = graphs * owners_each;
  std::vector<owned_graph> made;
  for (int i = 0; i < graphs; ++i) made.push_back(graph_with(owners_each));
  worker->retire(probe(make_fate([this] {
    is_blocking.store(true);
    EXPECT_TRUE(wait_until([this] { return may_end.load(); }, std::chrono::minutes(5)));
  })));
  ASSERT_TRUE(wait_until([this] { return is_blocking.load(); }));
  auto const begin = std::chrono::steady_clock::now();
  forget_deeds();
  made.clear();
  EXPECT_EQ(deeds_in_callbacks().callbacks, static_cast<std::uint64_t>(owners));
  EXPECT_EQ(deeds_in_callbacks().system_calls, 0U) << "the worker is awake and needs no wake-up";
  expect_clean(deeds_in_callbacks());
  std::this_thread::sleep_until(begin + std::chrono::milliseconds(300));
  static_cast<void>(graph_with(100));  // still blocked
  expect_clean(deeds_in_callbacks());
  EXPECT_EQ(destroyed, 0);
  may_end.store(true);
  EXPECT_TRUE(are_destroyed(owners + 100));
  EXPECT_TRUE(worker->stop_for(generous));
}

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
    if (is_sanitized) return GetParam().is_built ? 20 : 500;
    return GetParam().is_built ? deep_size<std::uint64_t>(200, 100'000)
                               : deep_size<std::uint64_t>(5'000, 1'000'000);
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
  callback_deeds audit(char const* where, auto const& end) {
    pool.emplace(
        make_pool(with(options(4 * slots_a_graph), &pool_options::host_wait_max, generous)));
    forget_deeds();
    for (int round = 1; deeds_in_callbacks().callbacks < wanted(); ++round)
      end(made_graph(), round);
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
    EXPECT_LE(deeds.system_calls, deeds.callbacks) << "one wake-up each at most";
    expect_clean(deeds);
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
}  // namespace escrow::test
