// SPDX-License-Identifier: Apache-2.0
// Mistakes that the simulator ends or refuses: work in freed memory, kernels that call CUDA, forked
// children, and waits in stepped time.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <string_view>

#include "deep.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

class Refusals : public pool_world {
 protected:
  // A process of its own, since this one has threads.
  Refusals() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void expect_freed(std::function<void()> const& run, std::string const& where) {
    if (is_sanitized) return;  // it tells that
    EXPECT_DEATH(run(), where + ": 0x.* is in memory that was freed, which work still uses: keep");
  }
  using buffer = device_buffer<int>;
  static void use_scratch(scratch_pool& scratch, cudaStream_t on) {
    must(launch_add(on, scratch.claim<int>(on, 64).data(), 1));
  }
  void use_held_up(scratch_pool& scratch, cudaStream_t on) {
    auto const held = scratch.claim<int>(on, 64);
    hold_up(on);
    must(launch_add(on, held.data(), 1));
  }
  void expect_overlap_ended(cudaGraphExec_t first, cudaGraphExec_t second, std::string const& of) {
    EXPECT_DEATH(
        {
          must(cudaGraphLaunch(first, one));
          must(cudaGraphLaunch(second, two));
          sync(two);
        },
        "cudaGraphLaunch: the launch of a graph on stream .* uses memory of " + of +
            ", a pool .* so does the launch of a graph on stream .*nothing orders .*graph_exec");
  }
  // Freed by the time that it returns.
  void end(buffer&& ended, cudaStream_t on) {
    worker->retire(on, std::move(ended));
    EXPECT_TRUE(drained());
    sync(on);
  }
};

TEST_F(Refusals, WorkInFreedMemory) {
  buffer made(64);
  int* const memory = made.data();
  graph_exec exec(captured([&](cudaStream_t on) { must(launch_add(on, memory, 1)); }));
  exec.launch(one);
  end(std::move(made), one);
  expect_freed([&] { static_cast<void>(launch_add(one, memory, 1)); },
               "cudaLaunchKernel: kernel .*add.*, argument 0");
  expect_freed([&] { static_cast<void>(cudaMemsetAsync(memory, 0, 4, one)); },
               "cudaMemsetAsync: fill, destination");
  expect_freed([&] { exec.launch(one); }, "cudaGraphLaunch: kernel .*add.*, argument 0");
  buffer const other(64);
  must(launch_add(one, other.data(), 1));
  sync(one);
}

TEST_F(Refusals, MemoryThatIsFreedBeforeItsWorkBegins) {
  expect_freed(
      [&] {
        sim::let_work_share(true);  // or the call that frees it is refused: see races_test.cpp
        buffer made(64);
        hold_up(one);
        must(launch_add(one, made.data(), 1));
        end(std::move(made), two);  // on the wrong stream
        flag.raise();
        sync(one);
      },
      "work on a stream: kernel .*add.*, argument 0");
}

TEST_F(Refusals, LaunchesOfTwoGraphsInOneArena) {
  sharing_group const group({.label = "batches"});
  scratch_pool scratch(with(options(4), &pool_options::group, group));
  auto const use = [&](cudaStream_t on) { use_held_up(scratch, on); };
  owned_graph const first = captured_plainly(use);
  owned_graph const second = captured_plainly(use);
  owned_exec const one_exec = instantiate(first.get());
  owned_exec const other_exec = instantiate(second.get());
  expect_overlap_ended(one_exec, other_exec, ".batches.");
  graph_exec ours(first.get());
  graph_exec others(second.get());
  ours.launch(one);
  others.launch(two);
  flag.raise();
  sync(two);
  must(cudaGraphLaunch(one_exec, two));
  sync(two);
}

// Two execs of one graph, and a slot that is given to others before the last launch has ended.
TEST_F(Refusals, LaunchesOfPlainExecsThatOverlap) {
  scratch_pool scratch(options(4));
  auto const use = [&](cudaStream_t on) { use_held_up(scratch, on); };
  owned_graph const made = captured_plainly(use);
  owned_exec const one_exec = instantiate(made.get());
  owned_exec const other_exec = instantiate(made.get());
  expect_overlap_ended(one_exec, other_exec, ".blocks of 256 bytes.");
  EXPECT_DEATH(
      {
        std::optional<graph_exec> ours(captured(use));
        must(cudaGraphLaunch(ours->get(), one));  // its end is not recorded
        ours.reset();
        EXPECT_TRUE(wait_until([&] { return scratch.stats().bytes_in_graphs <= 256; }));
        for (int i = 0; i < 4; ++i) use_scratch(scratch, two);
        sync(two);
      },
      "kernel .* uses memory of .* so does the launch of a graph on .*, which had it before, and "
      "nothing orders the two: launch by graph_exec");
}

TEST_F(Refusals, FreesOfAPoolsMemory) {
  scratch_pool scratch(options(4));
  auto const lease = scratch.claim<int>(one, 64);
  int* const memory = lease.data();
  constexpr auto text = "of memory of the pool .blocks of 256 bytes., which frees its own: end";
  EXPECT_DEATH(static_cast<void>(cudaFree(memory)), text);
  EXPECT_DEATH(static_cast<void>(cudaFreeAsync(memory, one)), text);
}

std::atomic<bool> may_end{false};
bool wait_with_memory(void** /*arguments*/) {
  return may_end.load();
}

TEST_F(Refusals, MemoryThatIsFreedWhileItsWorkRuns) {
  auto* const kernel = reinterpret_cast<void*>(&wait_with_memory);
  sim::register_kernel(kernel, &wait_with_memory, {sizeof(void*)}, "waits");
  expect_freed(
      [&] {
        sim::let_work_share(true);  // the same
        void* memory = nullptr;
        must(cudaMallocAsync(&memory, 4096, one));
        std::array<void*, 1> arguments{&memory};
        must(cudaLaunchKernel(kernel, {1}, {1}, arguments.data(), 0, one));
        must(launch_tiny(two));
        sync(two);
        must(cudaFreeAsync(memory, two));
        sync(two);
        may_end.store(true);
        sync(one);
      },
      "work on a stream: kernel .*waits.*, argument 0");
}

TEST_F(Refusals, WorkBesideThatOfAnotherLease) {
  scratch_pool scratch(options(1));
  auto const use_on_two = [&](bool is_told) {
    auto lease = scratch.claim<int>(one, 64);
    if (is_told) lease.record_stream(two);
    hold_up(two);
    must(launch_add(two, lease.data(), 1));
  };
  auto const use_on_one = [&] {
    auto const lease = scratch.claim<int>(one, 64);
    must(launch_add(one, lease.data(), 1));
  };
  EXPECT_DEATH(
      {
        use_on_two(false);
        use_on_one();
        sync(one);
      },
      "kernel .*add.* uses memory of .*, and so does kernel .*add.*, which had it before, and "
      "nothing "
      "orders the two: claim for the stream that the work is on.*; or tell the lease by "
      "record_stream");
  use_on_two(true);
  use_on_one();
  EXPECT_FALSE(is_idle(one));
  flag.raise();
  sync(one);
}

void call_cuda(int* cell) {
  *cell = cudaGetLastError();
}

TEST_F(Refusals, AKernelThatCallsCuda) {
  auto* const kernel = reinterpret_cast<void*>(sim::register_kernel<&call_cuda>("calls"));
  int* cell = cells.data();
  std::array<void*, 1> arguments{&cell};
  EXPECT_DEATH(
      {
        must(cudaLaunchKernel(kernel, {1}, {1}, arguments.data(), 0, one));
        sync(one);
      },
      "cudaGetLastError in the body of a kernel");
}

// Where its argument, or what it captures, was.
TEST_F(Refusals, AHostFunctionOrADestroyWhereNoMemoryIs) {
  if (is_sanitized) return;  // it tells that
  static int volatile* volatile nowhere = nullptr;
  auto const write = [](void*) { *nowhere = 1; };
  EXPECT_DEATH(
      {
        must(cudaLaunchHostFunc(one, write, nullptr));
        sync(one);
      },
      "a host function of a stream or graph reads or writes at .*, where no memory is: its "
      "argument");
  EXPECT_DEATH(
      {
        struct thing {
          ~thing() { *nowhere = 1; }
        };
        worker->retire(one, std::make_unique<thing>());
        EXPECT_TRUE(drained());
      },
      "a destructor, or a pool's .destroy. or .recycle., reads or writes at .* has to outlive");
}

TEST_F(Refusals, AFaultThatFailsNothingIsToldAtTheEnd) {
  EXPECT_EXIT(
      {
        sim::fail_call("cudaMallocHost", cudaErrorMemoryAllocation);
        sim::fail_call("cudaEventCreateWithFlags", cudaErrorUnknown, 1, 5);
        cudaEvent_t made = nullptr;
        static_cast<void>(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
        std::exit(0);
      },
      testing::ExitedWithCode(0),
      "^escrow::sim: fail_call..cudaMallocHost.. failed nothing, .*\n$");
}

TEST_F(Refusals, AForkedChild) {
  scratch_pool scratch(options(4));
  auto lease = scratch.claim(one, 64);
  pid_t const child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int told = 0;
    for (auto const& call : std::initializer_list<std::function<void()>>{
             [&] { static_cast<void>(scratch.claim(one, 64)); }, [&] { lease.release(); },
             [&] { worker->retire(one.get(), std::make_unique<int>(1)); }}) {
      try {
        call();
      } catch (cuda_error const& refused) {
        bool const is_named = std::string_view(refused.what()).find("fork()") != std::string::npos;
        told += is_named ? 1 : 0;
      }
    }
    ::_exit(told);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST_F(Refusals, AWaitWhereNobodySteps) {
  EXPECT_EXIT(
      {
        sim::reset({.stepped = true});
        owned_stream const on = make_stream();
        deleter its;
        its.retire(on.get(), std::make_unique<int>(1));
        try {
          its.drain();
        } catch (usage_error const& refused) {
          std::fputs(refused.what(), stderr);
          ::_exit(7);
        }
      },
      testing::ExitedWithCode(7), "deleter::drain: .*nobody steps.*call sim::step");
}

}  // namespace
}  // namespace escrow::test
