// SPDX-License-Identifier: Apache-2.0
// The stress tests of deleters and pools; those of graphs are in the files beside it. Owners are
// retired at random, on streams, after events, in captures and by other owners: each is destroyed
// once and never early, and no wake-up of the worker is lost. Threads claim and capture at random:
// no slot is in use twice at a time, on the host or on the device, and none is lost.
#include <mutex>

#include "escrow/internal/wakeup.hpp"
#include "stress_world.hpp"

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
    arena_.worker.retire_after(ready, std::pair(std::move(event), owner(arena_, its)));
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
  run_mix<retiring_actor>(
      4, [&] { return all.made > 100 && all.captures > 10; }, all);
  EXPECT_TRUE(worker->stop_for(generous));
  EXPECT_EQ(worker->stats().leaked, 0U);
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

/// Leases that one thread claimed and another releases.
struct given_away {
  struct one {
    block_lease held;
    std::unique_ptr<slot_holder> its;  // ends first
  };
  std::mutex mutex;  // guards the rest
  std::vector<one> leases;
};

class claiming_actor : public actor {
 public:
  claiming_actor(arena& all, std::uint64_t number, given_away& given)
      : actor(all, number), given_(given) {}

  // A release that could not be recorded waits until the pool is given its stream.
  void end() override {
    release_what_was_given();
    for (owned_stream const& each : streams_) static_cast<void>(arena_.pool->try_claim(each));
  }

 private:
  using holding = std::unique_ptr<slot_holder>;

  void step() override {
    one_of<claiming_actor>(
        {&claiming_actor::use_eagerly, &claiming_actor::use_eagerly, &claiming_actor::use_eagerly,
         &claiming_actor::give_away, &claiming_actor::release_what_was_given,
         &claiming_actor::capture_and_launch, &claiming_actor::capture_and_launch});
  }

  [[nodiscard]] std::optional<block_lease> claimed(cudaStream_t stream, slot_holder& its) {
    auto held = arena_.pool->try_claim(stream);
    if (!held) return held;
    its.take(*held);
    use_slot(*held, stream);
    return held;
  }

  void use_eagerly() {
    cudaStream_t const stream = any_stream();
    auto its = std::make_unique<slot_holder>(arena_);
    auto held = claimed(stream, *its);
    if (!held) return;
    cudaStream_t const other = any_stream();
    std::uint64_t const way = other == stream ? 0 : pick(4);
    if (way == 1 || way == 2) {  // the work goes on there
      order(stream, other);
      if (way == 2) held->record_stream(other);
      use_slot(*held, other);
    }
    its.reset();
    if (way == 1) {
      held->release(other);
    } else if (coin()) {
      held->release();
    }
  }

  void give_away() {
    cudaStream_t const stream = streams_[2];  // never captures: any thread may release on it
    auto its = std::make_unique<slot_holder>(arena_);
    auto held = claimed(stream, *its);
    if (!held) return;
    std::lock_guard const lock(given_.mutex);
    if (given_.leases.size() < 2) {
      given_.leases.push_back({std::move(*held), std::move(its)});
    } else {
      its.reset();
    }
  }

  void release_what_was_given() {
    std::vector<given_away::one> all;
    {
      std::lock_guard const lock(given_.mutex);
      all.swap(given_.leases);
    }
    for (given_away::one& each : all) {
      each.its.reset();
      each.held.release();
    }
  }

  void capture_and_launch() {
    cudaStream_t const stream = streams_[0];
    cudaStream_t const branch = streams_[1];
    auto its = std::make_unique<slot_holder>(arena_);
    std::optional<block_lease> late;
    must(cudaStreamBeginCapture(stream, any_mode()));
    must(launch_tiny(stream));
    for (std::uint64_t calls = 1 + pick(3); calls != 0; --calls) {
      if (pick(3) == 0) {
        order(stream, branch);
        static_cast<void>(claimed(branch, *its));
        static_cast<void>(claimed(stream, *its));
        order(branch, stream);
      } else {
        late = claimed(stream, *its);
      }
    }
    if (coin()) late.reset();
    bool const is_spoiled = pick(16) == 0;
    if (is_spoiled) {
      static_cast<void>(cudaStreamQuery(stream));
      its.reset();
      late.reset();
    }
    owned_graph graph;
    cudaError_t const ended = cudaStreamEndCapture(stream, graph.out());
    static_cast<void>(cudaGetLastError());
    if (is_spoiled) return;
    if (ended != cudaSuccess) arena_.harmed.fetch_add(1, std::memory_order_relaxed);
    arena_.captures.fetch_add(1, std::memory_order_relaxed);
    late.reset();
    launch_and_end(std::move(graph), std::move(its));
  }

  void launch_and_end(owned_graph graph, holding its) {
    thread_mode_scope const relaxed(cudaStreamCaptureModeRelaxed);
    owned_exec exec;
    owned_graph copy;
    owned_graph const last = clone(graph);  // has the slots until `its` ended
    if (pick(4) != 0) exec = instantiate(graph);
    if (pick(3) == 0) copy = clone(graph);
    if (exec.get() != nullptr) {
      for (std::uint64_t i = pick(4); i != 0; --i) must(cudaGraphLaunch(exec, streams_[0]));
    }
    if (copy.get() != nullptr && coin()) {
      owned_exec const of_copy = instantiate(copy);
      must(cudaGraphLaunch(of_copy, streams_[0]));
    }
    if (coin()) graph.reset();
    if (coin()) copy.reset();
    if (coin()) sync(streams_[0]);
    its.reset();
  }

  given_away& given_;
};

class PoolStress : public stress {};

TEST_F(PoolStress, NoSlotIsInUseTwiceAtATimeAndNoneIsLost) {
  constexpr std::size_t slots = 12;
  block_pool pool = make_pool(slots);
  arena all(*worker, mismatches, &pool);
  given_away given;
  run_mix<claiming_actor>(
      4, [&] { return all.captures > 10 && all.claims > 100; }, all, given);
  EXPECT_LE(made(), static_cast<int>(slots));
}

}  // namespace
}  // namespace escrow::test
