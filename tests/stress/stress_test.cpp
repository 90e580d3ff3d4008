// The deleter's stress tests; those of pools and graphs are in the files beside it. Owners are
// retired at random, on streams, after events, in captures and by other owners: each is destroyed
// once and never early. No wake-up of the worker is lost.
#include <utility>

#include "stress_world.hpp"
#include "wakeup.hpp"

namespace escrow::test {
namespace {

class retiring_actor : public actor {
 public:
  using actor::actor;

 private:
  void step() override {
    one_of<retiring_actor>({&retiring_actor::on_a_stream, &retiring_actor::on_a_stream,
                            &retiring_actor::after_an_event, &retiring_actor::in_a_capture,
                            &retiring_actor::without_work, &retiring_actor::one_after_the_other});
  }

  /// Work that is launched now, `times`.
  [[nodiscard]] work launched(cudaStream_t on, int times = 1) {
    work its = new_work();
    its.expect(times);
    for (int i = 0; i < times; ++i) its.enqueue(on);
    return its;
  }

  void on_a_stream() {
    cudaStream_t const on = any_stream();
    work const its = launched(on, 1 + static_cast<int>(pick(3)));
    arena_.worker.retire(on, owner(arena_, its));
  }

  void without_work() { arena_.worker.retire(owner(arena_, new_work())); }

  void after_an_event() {
    cudaStream_t const on = any_stream();
    auto event = std::make_shared<owned_event>(make_event());
    work const its = launched(on);
    must(cudaEventRecord(*event, on));
    cudaEvent_t const ready = *event;
    arena_.worker.retire_after(ready, [kept = std::move(event), last = owner(arena_, its)] {});
  }

  // The graph is instantiated up to twice, and each exec launched up to three times; they end in
  // any order.
  void in_a_capture() {
    cudaStream_t const on = any_stream();
    work its = new_work();
    capture capturing(on, any_mode());
    its.enqueue(on);
    arena_.worker.retire(on, owner(arena_, its));
    must(capturing.end());
    thread_mode_scope const relaxed(cudaStreamCaptureModeRelaxed);
    arena_.captures.fetch_add(1, std::memory_order_relaxed);
    std::vector<owned_exec> execs;
    for (std::uint64_t i = pick(3); i != 0; --i) execs.push_back(instantiate(capturing.graph()));
    if (coin()) capturing.graph().reset();
    for (owned_exec const& exec : execs) {
      for (std::uint64_t i = pick(4); i != 0; --i) {
        its.expect();
        must(cudaGraphLaunch(exec, any_stream()));
      }
    }
  }

  // An owner that retires the next one from its destructor.
  void one_after_the_other() {
    struct link {
      link(deleter& its, owner&& next) : worker(&its), inner(new owner(std::move(next))) {}
      link(link&&) noexcept = default;
      ~link() {
        if (inner != nullptr) worker->retire(std::move(inner));
      }
      deleter* worker;
      std::unique_ptr<owner> inner;
    };
    cudaStream_t const on = any_stream();
    work const its = launched(on);
    arena_.worker.retire(on, link(arena_.worker, owner(arena_, its)));
  }
};

class DeleterStress : public stress {};

TEST_F(DeleterStress, EveryOwnerIsDestroyedOnceAndNeverEarly) {
  arena all(*worker, mismatches);
  run_mix<retiring_actor>(4, stress_time() / 2, all);
  EXPECT_GT(all.made, 100U);
  EXPECT_GT(all.captures, 10U);
  EXPECT_TRUE(worker->stop_for(generous));
  EXPECT_EQ(worker->stats().leaked, 0U);
}

// Deleters end while CUDA still releases what their graphs held.
TEST_F(DeleterStress, DeletersThatEndAtAnyMomentLeaveNothing) {
  arena all(*worker, mismatches);
  work const none(cells, 7);
  std::mt19937_64 random(7);
  auto const end = std::chrono::steady_clock::now() + stress_time() / 2;
  while (std::chrono::steady_clock::now() < end) {
    deleter its(deleter_options{.own_worker = random() % 4 != 0,
                                .poll_interval_min = std::chrono::microseconds(5),
                                .poll_interval_max = std::chrono::microseconds(20)});
    capture capturing(one, cudaStreamCaptureModeThreadLocal);
    must(launch_tiny(one));
    for (std::uint64_t i = random() % 4; i != 0; --i) its.retire(one.get(), owner(all, none));
    must(capturing.end());
    owned_exec exec = instantiate(capturing.graph());
    must(cudaGraphLaunch(exec, one));
    if (random() % 2 == 0) sync(one);
    its.retire(one.get(), owner(all, none));
    capturing.graph().reset();
    exec.reset();
    if (random() % 2 == 0) {
      static_cast<void>(wait_until([&] { return its.stats().in_graphs == 0; },
                                   std::chrono::milliseconds(random() % 2)));
    }
  }
  expect_nothing_lost(all);
}

TEST(DeletersWakeup, IsNeverLost) {
  auto const end = std::chrono::steady_clock::now() + stress_time() / 2;
  deleter its(deleter_options{.linger = std::chrono::microseconds(0)});
  for (int i = 0; i < 2000 && std::chrono::steady_clock::now() < end; ++i) {
    auto const fate = make_fate();
    its.retire(probe(fate));
    ASSERT_TRUE(fate->wait()) << "round " << i;
  }
}

TEST(WakeupStore, LendsAgainWhatWasReturnedAndNeverFreesIt) {
  wakeup_store::loan first = wakeup_store::take();
  wakeup_store::loan const second = wakeup_store::take();
  wakeup* const known = first.get();
  EXPECT_NE(known, second.get());
  first.reset();
  known->notify();  // late, and harmless
  EXPECT_EQ(wakeup_store::take().get(), known);
}

}  // namespace
}  // namespace escrow::test
