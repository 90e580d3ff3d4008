// SPDX-License-Identifier: Apache-2.0
// Which destroys block: those of execs with conditional nodes. And what a user object's destructor
// and a host function may do.
#include "call_elsewhere.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

class DestroyInFlight : public testing::Test {
 protected:
  // A body that waits for the flag, then adds 1 to the cell.
  void fill_conditional() {
    cudaGraph_t const body = add_conditional(graph);
    add_kernel(body, add_call(cell.data(), 1), add_kernel(body, wait_flag_call(flag.get())));
  }

  void expect_blocks(owned_exec exec) {
    call_elsewhere const destroy(
        [handle = exec.release()] { return cudaGraphExecDestroy(handle); });
    EXPECT_TRUE(destroy.stays_blocked());
    flag.raise();
    EXPECT_TRUE(destroy.succeeds_soon());
  }
  void expect_does_not_block(pinned_flag& awaited, std::function<cudaError_t()> destroy) {
    call_elsewhere const call(std::move(destroy));
    EXPECT_TRUE(call.succeeds_soon());
    EXPECT_EQ(cell.load(), 0);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    awaited.raise();
    must(cudaStreamSynchronize(stream));
    EXPECT_EQ(cell.load(), 1);
  }

  pinned_flag flag;
  pinned_ints cell;
  owned_stream stream = make_stream();
  owned_graph graph = make_graph();
};

TEST_F(DestroyInFlight, OfAnExecWithConditionalNodesBlocksUntilTheLaunchIsDone) {
  fill_conditional();
  owned_exec exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  expect_blocks(std::move(exec));
  EXPECT_EQ(cell.load(), 1);
}

TEST_F(DestroyInFlight, OfAnExecWithConditionalNodesBlocksUntilTheUploadIsDone) {
  owned_stream const other = make_stream();
  fill_conditional();
  owned_exec exec = instantiate(graph);
  must(launch_wait_flag(stream, flag.get()));
  must(cudaGraphUpload(exec, stream));
  must(cudaGraphUpload(exec, other));
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady) << "it is after the one before";
  expect_blocks(std::move(exec));
  EXPECT_EQ(cell.load(), 0);
}

TEST_F(DestroyInFlight, OfAnExecWithoutThemDoesNotBlockNotEvenWithMemoryNodes) {
  for (bool const has_memory_nodes : {false, true}) {
    pinned_flag own_flag;
    cell.store(0, 0);
    graph = make_graph();
    allocation const memory = has_memory_nodes ? add_alloc(graph, 1) : allocation{};
    auto* const waits = add_kernel(graph, wait_flag_call(own_flag.get()), memory.node);
    auto* const last = add_kernel(graph, add_call(cell.data(), 1), waits);
    if (has_memory_nodes) add_free(graph, memory, last);
    owned_exec exec = instantiate(graph);
    must(cudaGraphLaunch(exec, stream));
    expect_does_not_block(own_flag,
                          [handle = exec.release()] { return cudaGraphExecDestroy(handle); });
  }
}

TEST_F(DestroyInFlight, OfAGraphWithConditionalNodesDoesNotBlock) {
  fill_conditional();
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  expect_does_not_block(flag, [handle = graph.release()] { return cudaGraphDestroy(handle); });
}

TEST_F(DestroyInFlight, OfAStreamAndOfTheEventThatItWaitsForDoesNotBlockAndKeepsTheOrder) {
  owned_stream waiting = make_stream();
  owned_event awaited = make_event();
  owned_event const behind = make_event();
  must(launch_wait_flag(stream, flag.get()));
  must(launch_add(stream, cell.data(), 1));
  must(cudaEventRecord(awaited, stream));
  must(cudaStreamWaitEvent(waiting, awaited, 0));
  must(cudaEventRecord(behind, waiting));
  expect_does_not_block(flag, [&] {
    must(cudaEventDestroy(awaited.release()));
    must(cudaStreamDestroy(waiting.release()));
    EXPECT_EQ(cudaEventQuery(behind), cudaErrorNotReady);
    return cudaSuccess;
  });
  EXPECT_EQ(cudaEventSynchronize(behind), cudaSuccess);
}

void CUDART_CB set_flag(void* argument) {
  static_cast<std::atomic<bool>*>(argument)->store(true);
}

// What the calls work on, all made and idle before the call.
struct resources {
  owned_stream stream = make_stream();
  owned_event event = make_event();
  void* memory = nullptr;
  void* pool_memory = nullptr;
  void* made = nullptr;
  int device = 0;
  std::atomic<bool> function_ran{false};

  resources() {
    must(cudaEventRecord(event, stream));
    must(cudaMalloc(&memory, 64));
    must(cudaMallocAsync(&pool_memory, 64, stream));
    must(cudaStreamSynchronize(stream));
  }
  resources(resources const&) = delete;
  resources& operator=(resources const&) = delete;
  ~resources() {
    static_cast<void>(cudaFree(memory));
    static_cast<void>(cudaFreeAsync(pool_memory, stream));
    static_cast<void>(cudaStreamSynchronize(stream));
    static_cast<void>(cudaGetLastError());
  }
};

// An exec that was launched and is done, and holds the last reference to what `seen` makes: its
// destroy hands the destructor to the internal thread.
owned_exec done_exec_holding(witness& seen, cudaStream_t stream) {
  owned_graph const graph = tiny_graph();
  seen.move_to(graph);
  owned_exec result = instantiate(graph);
  run(result, stream);
  return result;
}

using action = std::function<void()>;

void CUDART_CB run_action(void* argument) {
  (*static_cast<action*>(argument))();
}

// The places where a callback of CUDA's runs.
void run_in_a_destructor_on_the_caller(action& what) {
  witness seen{what};
  must(cudaUserObjectRelease(seen.make(), 1));
  must(seen.ran_here(), "the destructor ran on the caller");
}

void run_in_a_destructor_on_the_internal_thread(action& what) {
  witness seen{what};
  owned_stream const stream = make_stream();
  done_exec_holding(seen, stream).reset();
  must(seen.wait() && seen.ran_elsewhere(), "the destructor ran on an internal thread");
}

void run_in_a_host_function(action& what) {
  owned_stream const stream = make_stream();
  must(cudaLaunchHostFunc(stream, &run_action, &what));
  must(cudaStreamSynchronize(stream));
}

void run_in_a_host_node(action& what) {
  owned_stream const stream = make_stream();
  owned_graph const graph = make_graph();
  add_host(graph, &run_action, &what);
  run(graph, stream);
}

constexpr std::array places{&run_in_a_destructor_on_the_caller,
                            &run_in_a_destructor_on_the_internal_thread, &run_in_a_host_function,
                            &run_in_a_host_node};
using place = decltype(places)::value_type;

// The status of a call that is made there.
cudaError_t status_in(place where, auto call) {
  cudaError_t status = cudaErrorUnknown;
  action make = [&] { status = call(); };
  where(make);
  return status;
}

TEST(Callback, MayNotMakeMostCallsWhichThenDoNothing) {
  using call = cudaError_t (*)(resources&);
  constexpr std::pair<char const*, call> calls[] = {
      {"cudaFree", [](resources& r) { return cudaFree(r.memory); }},
      {"cudaFreeAsync", [](resources& r) { return cudaFreeAsync(r.pool_memory, r.stream); }},
      {"cudaMalloc", [](resources& r) { return cudaMalloc(&r.made, 64); }},
      {"cudaEventRecord", [](resources& r) { return cudaEventRecord(r.event, r.stream); }},
      {"cudaEventDestroy", [](resources& r) { return cudaEventDestroy(r.event); }},
      {"cudaStreamSynchronize", [](resources& r) { return cudaStreamSynchronize(r.stream); }},
      {"cudaGetDevice", [](resources& r) { return cudaGetDevice(&r.device); }},
      {"cudaLaunchHostFunc",
       [](resources& r) { return cudaLaunchHostFunc(r.stream, &set_flag, &r.function_ran); }},
  };
  for (place const where : places) {
    for (auto const& [name, make] : calls) {
      SCOPED_TRACE(name);
      resources all;
      EXPECT_EQ(status_in(where, [&, call = make] { return call(all); }), cudaErrorNotPermitted);
      static_cast<void>(cudaGetLastError());
      EXPECT_EQ(cudaStreamSynchronize(all.stream), cudaSuccess);
      EXPECT_EQ(cudaEventQuery(all.event), cudaSuccess);
      EXPECT_FALSE(all.function_ran.load());
    }
  }
}

TEST(Callback, MayAskWhetherAnEventIsDoneAndClearTheThreadsLastError) {
  for (place const where : places) {
    resources all;
    auto const query = [&] { return cudaEventQuery(all.event); };
    EXPECT_EQ(status_in(where, query), cudaSuccess);
    pinned_flag flag;
    must(launch_wait_flag(all.stream, flag.get()));
    must(cudaEventRecord(all.event, all.stream));
    EXPECT_EQ(status_in(where, query), cudaErrorNotReady);
    flag.raise();
    // Twice, since the first answer may be of an earlier call on the same internal thread.
    auto const ask_twice = [] {
      static_cast<void>(cudaGetLastError());
      return cudaGetLastError();
    };
    EXPECT_EQ(status_in(where, ask_twice), cudaSuccess);
  }
}

TEST(BlockedDestructor, DelaysHostFunctionsAndOtherDestructorsButNotKernels) {
  std::atomic<bool> entered{false};
  std::atomic<bool> gate{false};
  std::atomic<bool> host_function_ran{false};
  witness blocker{[&] {
    set_flag(&entered);
    static_cast<void>(wait_until([&] { return gate.load(); }));
  }};
  witness next;
  pinned_ints cell;
  owned_stream const stream = make_stream();
  owned_stream const other = make_stream();
  owned_exec first_exec = done_exec_holding(blocker, stream);
  owned_exec next_exec = done_exec_holding(next, stream);
  must(launch_tiny(other));
  must(cudaStreamSynchronize(other));

  first_exec.reset();
  ASSERT_TRUE(wait_until([&] { return entered.load(); }));
  next_exec.reset();
  EXPECT_EQ(launch_add(stream, cell.data(), 1), cudaSuccess);
  EXPECT_EQ(cudaLaunchHostFunc(other, &set_flag, &host_function_ran), cudaSuccess);
  EXPECT_TRUE(wait_until([&] { return cell.load() == 1; }));
  EXPECT_TRUE(stays_false([&] { return host_function_ran.load() || next.ran(); }));
  EXPECT_FALSE(blocker.ran());

  set_flag(&gate);
  EXPECT_TRUE(next.wait());
  EXPECT_TRUE(blocker.ran());
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_TRUE(host_function_ran.load());
}

}  // namespace
}  // namespace escrow::test
