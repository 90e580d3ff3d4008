// SPDX-License-Identifier: Apache-2.0
// What no GPU shows. What CUDA leaves undefined, and the simulator reports: related graphs changed
// by two threads, kernels of an unloaded library, memory and events used after their end. And
// recaptures, as CUDA's manual has them: no GPU was seen doing one.
#include <mutex>

#include "deep.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

// A graph, and what is made of it.
struct family {
  owned_graph original = tiny_graph();
  owned_graph copy = clone(original);
  owned_graph parent = make_graph();
  cudaGraphNode_t child = add_child(parent, original);
  owned_exec exec = instantiate(original);
};

// Each makes and ends something, and leaves the family as it was.
using deed = void (*)(family&);
constexpr deed clone_and_end = [](family& of) { clone(of.original).reset(); };
constexpr deed instantiate_and_end = [](family& of) { instantiate(of.original).reset(); };
constexpr deed embed_and_end = [](family& of) { add_child(make_graph(), of.original); };
constexpr deed destroy_child = [](family& of) {
  must(cudaGraphDestroyNode(add_child(of.parent, of.original)));
};
constexpr deed destroy_node = [](family& of) {
  must(cudaGraphDestroyNode(add_kernel(of.original, tiny_call())));
};
constexpr deed update_exec = [](family& of) { must(update(of.exec, of.original)); };

// Two threads, until they met or have each had their time and some rounds. `in_turn`: one at a
// time.
void run_both(std::function<void()> const& one, std::function<void()> const& other,
              std::chrono::milliseconds time, bool in_turn) {
  std::atomic<bool> is_over{false};
  std::mutex turns;
  auto const work = [&](std::function<void()> const& done) {
    constexpr int rounds_min = 10;
    for (int round = 0; round < rounds_min || !is_over.load(std::memory_order_relaxed); ++round) {
      std::unique_lock lock(turns, std::defer_lock);
      if (in_turn) lock.lock();
      done();
    }
  };
  std::thread first(work, one);
  std::thread second(work, other);
  static_cast<void>(wait_until([] { return false; }, time));
  is_over.store(true, std::memory_order_relaxed);
  first.join();
  second.join();
}

void fight(deed one, deed other, std::chrono::milliseconds time, bool in_turn = false) {
  family of;
  run_both([&] { one(of); }, [&] { other(of); }, time, in_turn);
}

TEST(Families, EndTheProcessIfTwoThreadsMakeOrEndWhatIsOfOneGraph) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (auto const& [one, other] : {std::pair{clone_and_end, clone_and_end},
                                   {instantiate_and_end, clone_and_end},
                                   {embed_and_end, clone_and_end},
                                   {destroy_child, clone_and_end},
                                   {destroy_node, instantiate_and_end},
                                   {update_exec, instantiate_and_end}}) {
    EXPECT_DEATH(fight(one, other, generous), "both make or end what is of one graph");
  }
}

TEST(Families, MayBeOfTwoThreadsThatTakeTurnsOrOfWhichOneIsAtAnotherGraph) {
  constexpr std::chrono::milliseconds time{50};
  fight(instantiate_and_end, clone_and_end, time, true);
  constexpr deed others[] = {
      [](family& of) { instantiate(of.copy).reset(); },
      [](family& of) { instantiate(of.parent).reset(); },
      [](family& of) { must(cudaGraphDestroyNode(add_kernel(of.copy, tiny_call()))); },
      [](family& of) { run(of.exec.get(), make_stream()); },
  };
  for (deed const other : others) fight(other, clone_and_end, time);
}

// One thread captures the stream, the other calls `beside`.
void capture_beside(std::chrono::milliseconds time, std::function<void(cudaStream_t)> const& beside,
                    bool in_turn = false) {
  owned_stream const stream = make_stream();
  auto const capture = [&] {
    owned_graph captured;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    must(cudaStreamEndCapture(stream, captured.out()));
  };
  run_both(
      capture, [&] { beside(stream); }, time, in_turn);
}

void ask_for_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  must(cudaStreamIsCapturing(stream, &status));
}

TEST(Streams, EndTheProcessIfTheyAreUsedWhileAnotherThreadBeginsOrEndsTheirCapture) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(capture_beside(generous, &ask_for_capture), "whose capture begins or ends");
  owned_event const event = make_event();
  EXPECT_DEATH(
      capture_beside(generous, [&](cudaStream_t its) { must(cudaEventRecord(event, its)); }),
      "whose capture begins or ends");
}

TEST(Streams, MayBeUsedByTwoThreadsInTurnsOrIfTheyAreTwo) {
  constexpr std::chrono::milliseconds time{50};
  capture_beside(time, &ask_for_capture, true);
  owned_stream const other = make_stream();
  capture_beside(time, [&](cudaStream_t) { ask_for_capture(other); });
}

// Runs until the integer its argument points to is not zero.
bool wait_kernel(void** args) {
  // Acquire: pairs with the release of who raises the flag.
  return std::atomic_ref<int>{**static_cast<int**>(args[0])}.load(std::memory_order_acquire) != 0;
}

// A library, whose image is gone, with a kernel that ends once *flag is not zero.
class UnloadedLibrary : public fresh_runtime {
 protected:
  void load(sim::options const& how = {}) {
    static_cast<void>(stream.release());  // the reset ends it
    sim::reset(how);
    sim::library_image image;
    image.add("wait", &wait_kernel, {sizeof(int*)});
    must(cudaLibraryLoadData(&library, image.code(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    cudaKernel_t kernel = nullptr;
    must(cudaLibraryGetKernel(&kernel, library, "wait"));
    call.func = reinterpret_cast<void*>(kernel);
    call.gridDim = dim3{1};
    call.blockDim = dim3{1};
    call.kernelParams = arguments.data();
    stream = make_stream();
  }
  void launch() {
    must(cudaLaunchKernel(call.func, call.gridDim, call.blockDim, call.kernelParams, 0, stream));
  }
  void expect_fault() {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure) << "for good";
    EXPECT_EQ(sim::unloaded_kernel_launches(), 1U);
  }

  int raised = 1;
  int* flag = &raised;  // what the kernel waits for
  std::array<void*, 1> arguments{&flag};
  cudaLibrary_t library = nullptr;
  cudaKernelNodeParams call{};
  owned_stream stream;
};

TEST_F(UnloadedLibrary, FailsTheDeviceIfItsKernelIsLaunchedAlsoByAnExec) {
  for (bool const is_in_exec : {false, true}) {
    load();
    owned_graph const graph = make_graph();
    add_node(cudaGraphAddKernelNode, graph, nullptr, &call);
    owned_exec const exec = instantiate(graph);
    run(exec, stream);
    must(cudaLibraryUnload(library));
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << "behind the last launch";
    EXPECT_EQ(sim::unloaded_kernel_launches(), 0U);
    if (is_in_exec) {
      must(cudaGraphLaunch(exec, stream));
    } else {
      launch();
    }
    expect_fault();
  }
}

TEST_F(UnloadedLibrary, FailsTheDeviceIfItsKernelRunsOrIsBehindWorkThatRuns) {
  for (bool const is_stepped : {false, true}) {
    load({.stepped = is_stepped});
    pinned_ints not_raised;
    flag = not_raised.data();
    launch();
    launch();
    must(cudaLibraryUnload(library));
    expect_fault();
    sim::run_until_idle();
    EXPECT_EQ(sim::alive().pending_ops, 0U);
  }
}

using DestroyedEvents = fresh_runtime;

TEST_F(DestroyedEvents, KeepAGraphFromRunningWhoseNodesOrThoseOfAChildUseThem) {
  owned_stream const stream = make_stream();
  for (bool const is_in_child : {false, true}) {
    owned_event event = make_event();
    owned_graph const graph = make_graph();
    owned_graph const child = make_graph();
    add_wait(child, event);
    if (is_in_child) {
      add_child(graph, child);
    } else {
      add_record(graph, event);
    }
    owned_exec const exec = instantiate(graph);
    must(cudaGraphLaunch(exec, stream));
    event.reset();
    EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
}

class FreedMemory : public fresh_runtime {
 protected:
  void SetUp() override {
    if (!built_with_asan) GTEST_SKIP() << "AddressSanitizer sees it";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  static void fill(int* data) {
    owned_stream const stream = make_stream();
    must(launch_fill(stream, data, 4, 5));
    must(cudaStreamSynchronize(stream));
  }
};

TEST_F(FreedMemory, IsSeenWhenAKernelTouchesIt) {
  EXPECT_DEATH(
      {
        void* data = nullptr;
        must(cudaMalloc(&data, 16));
        must(cudaFree(data));
        fill(static_cast<int*>(data));
      },
      "heap-use-after-free");
}

TEST_F(FreedMemory, OfAGraphIsSeenBeforeItsAllocNodeAndAfterItsFreeNodeHasRun) {
  for (bool const is_launched : {false, true}) {
    EXPECT_DEATH(
        {
          owned_stream const stream = make_stream();
          owned_graph const graph = make_graph();
          allocation const memory = add_alloc(graph);
          add_free(graph, memory, memory.node);
          owned_exec const exec = instantiate(graph);
          if (is_launched) must(cudaGraphLaunch(exec, stream));
          must(cudaStreamSynchronize(stream));
          fill(memory.data);
        },
        "use-after-poison");
  }
}

// Recapture of a graph (CUDA 13.3).

/// What a callback was told, and what it answers.
struct mismatches_seen {
  std::vector<std::pair<int, cudaGraphRecaptureStatus>> values;  // of fills
  cudaError_t answer = cudaSuccess;

  static cudaError_t CUDART_CB add(void* data, cudaGraphNode_t /*node*/,
                                   cudaGraphNodeParams const* original,
                                   cudaGraphNodeParams const* recaptured,
                                   cudaGraphRecaptureStatus status) {
    auto& mine = *static_cast<mismatches_seen*>(data);
    EXPECT_EQ(original->type, cudaGraphNodeTypeMemset);
    EXPECT_EQ(original->memset.value, 1U);
    mine.values.emplace_back(recaptured->memset.value, status);
    return mine.answer;
  }
};

class SimulatedRecapture : public testing::Test {
 protected:
  [[nodiscard]] cudaError_t set(unsigned char value) {
    return cudaMemsetAsync(cells.data(), value, 1, one);
  }
  [[nodiscard]] cudaError_t add() { return launch_add(one, cells.data() + 1, 1); }
  void fill_with(unsigned char value) {
    must(set(value));
    must(add());
  }
  /// How a recapture of what `enqueue` enqueues ended.
  [[nodiscard]] cudaError_t end_with(std::function<void()> const& enqueue) {
    cudaGraphRecaptureCallbackData callback{&mismatches_seen::add, &seen};
    return end_of_recapture(
        one, source, [&](cudaStream_t) { enqueue(); }, &callback);
  }

  [[nodiscard]] owned_graph captured() {
    capture open{one, cudaStreamCaptureModeGlobal};
    fill_with(1);
    must(open.end());
    return std::move(open.graph());
  }

  pinned_ints cells{2};
  owned_stream one = make_stream();
  owned_stream two = make_stream();
  owned_graph source = captured();
  mismatches_seen seen;
};

TEST_F(SimulatedRecapture, TellsOfNodesWhoseParametersDifferAndReplacesThem) {
  EXPECT_EQ(end_with([&] { fill_with(1); }), cudaSuccess);
  EXPECT_TRUE(seen.values.empty());
  EXPECT_EQ(end_with([&] { fill_with(2); }), cudaSuccess);
  ASSERT_EQ(seen.values.size(), 1U);
  EXPECT_EQ(seen.values[0], std::pair(2, cudaGraphRecaptureEligibleForUpdate));
  owned_exec const exec = instantiate(source);
  must(cudaGraphLaunch(exec, two));
  must(cudaStreamSynchronize(two));
  EXPECT_EQ(cells.load(), 2);
  EXPECT_EQ(cells.load(1), 1);
}

TEST_F(SimulatedRecapture, FailsIfTheCallbackFails) {
  seen.answer = cudaErrorUnknown;
  EXPECT_EQ(end_with([&] {
              EXPECT_EQ(set(2), cudaErrorGraphRecaptureFailure);
              EXPECT_EQ(add(), cudaErrorStreamCaptureInvalidated);
            }),
            cudaErrorGraphRecaptureFailure);
}

TEST_F(SimulatedRecapture, FailsIfANodeIsMissingIsOfAnotherTypeOrDependsOnAnother) {
  auto const failure = cudaErrorGraphRecaptureFailure;
  EXPECT_EQ(end_with([&] { must(set(1)); }), failure);
  EXPECT_EQ(end_with([&] { EXPECT_EQ(add(), failure); }), failure);
  EXPECT_EQ(end_with([&] {
              must(set(1));
              must(cudaStreamUpdateCaptureDependencies(one, nullptr, nullptr, 0,
                                                       cudaStreamSetCaptureDependencies));
              EXPECT_EQ(add(), failure);
            }),
            failure);
}

TEST_F(SimulatedRecapture, ReleasesTheGraphsUserObjectsAsItBeginsAndNotThoseOfItsExecs) {
  witness of_graph;
  witness of_exec;
  of_exec.move_to(source);
  owned_exec exec = instantiate(source);
  of_graph.move_to(source);
  EXPECT_EQ(end_with([&] {
              EXPECT_TRUE(of_graph.ran_here());
              EXPECT_FALSE(of_exec.ran());
              fill_with(1);
            }),
            cudaSuccess);
  exec.reset();
  EXPECT_TRUE(of_exec.ran_here());
}

}  // namespace
}  // namespace escrow::test
