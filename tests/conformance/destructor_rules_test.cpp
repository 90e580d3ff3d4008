// What a user object's destructor and a host function may do.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <tuple>

#include "build_graph.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "witness.hpp"

namespace escrow::test {
namespace {

void CUDART_CB set_flag(void* argument) {
  // Release: pairs with the acquire of whoever asks.
  static_cast<std::atomic<bool>*>(argument)->store(true, std::memory_order_release);
}

bool is_set(std::atomic<bool> const& flag) {
  return flag.load(std::memory_order_acquire);
}

// Things for the calls to work on, all made and idle before the call.
struct resources {
  owned_stream stream = make_stream();
  owned_event event = make_event();
  void* memory = nullptr;
  void* pool_memory = nullptr;
  std::atomic<bool> host_function_ran{false};

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

struct call {
  char const* name;
  cudaError_t (*make)(resources&);
};

void PrintTo(call const& what, std::ostream* out) {
  *out << what.name;
}

// The places from which a callback of CUDA's may run, and how to get there.
struct place_of_callback {
  char const* name;
  void (*run)(std::function<void()> const&);
};

void PrintTo(place_of_callback const& where, std::ostream* out) {
  *out << where.name;
}

void run_in_a_destructor_on_the_caller(std::function<void()> const& action) {
  witness seen{action};
  must(cudaUserObjectRelease(seen.make(), 1));
  must(seen.ran_here(), "the destructor ran on the caller");
}

void run_in_a_destructor_on_the_internal_thread(std::function<void()> const& action) {
  witness seen{action};
  owned_stream const stream = make_stream();
  owned_graph graph = tiny_graph();
  seen.move_to(graph);
  owned_exec exec = instantiate(graph);
  graph.reset();
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
  exec.reset();
  must(seen.wait() && seen.ran_elsewhere(), "the destructor ran on an internal thread");
}

void CUDART_CB run_action(void* argument) {
  (*static_cast<std::function<void()> const*>(argument))();
}

void run_in_a_host_function(std::function<void()> const& action) {
  owned_stream const stream = make_stream();
  must(cudaLaunchHostFunc(stream, &run_action, const_cast<std::function<void()>*>(&action)));
  must(cudaStreamSynchronize(stream));
}

void run_in_a_host_node(std::function<void()> const& action) {
  owned_stream const stream = make_stream();
  owned_graph const graph = make_graph();
  cudaHostNodeParams params{};
  params.fn = &run_action;
  params.userData = const_cast<std::function<void()>*>(&action);
  cudaGraphNode_t node = nullptr;
  must(cudaGraphAddHostNode(&node, graph, nullptr, 0, &params));
  owned_exec const exec = instantiate(graph);
  must(cudaGraphLaunch(exec, stream));
  must(cudaStreamSynchronize(stream));
}

constexpr std::array places{
    place_of_callback{"ADestructorOnTheCaller", &run_in_a_destructor_on_the_caller},
    place_of_callback{"ADestructorOnTheInternalThread",
                      &run_in_a_destructor_on_the_internal_thread},
    place_of_callback{"AHostFunction", &run_in_a_host_function},
    place_of_callback{"AHostNode", &run_in_a_host_node},
};

constexpr std::array forbidden_calls{
    call{"Free", [](resources& r) { return cudaFree(r.memory); }},
    call{"FreeAsync", [](resources& r) { return cudaFreeAsync(r.pool_memory, r.stream); }},
    call{"Malloc",
         [](resources&) {
           void* memory = nullptr;
           return cudaMalloc(&memory, 64);
         }},
    call{"EventRecord", [](resources& r) { return cudaEventRecord(r.event, r.stream); }},
    call{"EventDestroy", [](resources& r) { return cudaEventDestroy(r.event); }},
    call{"StreamSynchronize", [](resources& r) { return cudaStreamSynchronize(r.stream); }},
    call{"GetDevice",
         [](resources&) {
           int device = 0;
           return cudaGetDevice(&device);
         }},
    call{
        "LaunchHostFunc",
        [](resources& r) { return cudaLaunchHostFunc(r.stream, &set_flag, &r.host_function_ran); }},
};

using place_and_call = std::tuple<place_of_callback, call>;

std::string name_of(testing::TestParamInfo<place_and_call> const& info) {
  auto const& [where, what] = info.param;
  return std::string{what.name} + "In" + where.name;
}

// The status of one call made from one place.
cudaError_t status_of(place_and_call const& which, resources& all) {
  auto const& [where, what] = which;
  cudaError_t status = cudaErrorUnknown;
  where.run([&, make = what.make] { status = make(all); });
  return status;
}

class ForbiddenCall : public testing::TestWithParam<place_and_call> {};

TEST_P(ForbiddenCall, ReturnsNotPermittedAndDoesNothing) {
  resources all;
  EXPECT_EQ(status_of(GetParam(), all), cudaErrorNotPermitted);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(cudaStreamSynchronize(all.stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(all.event), cudaSuccess);
  EXPECT_FALSE(is_set(all.host_function_ran));
}

INSTANTIATE_TEST_SUITE_P(Callback, ForbiddenCall,
                         testing::Combine(testing::ValuesIn(places),
                                          testing::ValuesIn(forbidden_calls)),
                         name_of);

class AllowedCall : public testing::TestWithParam<place_of_callback> {};

TEST_P(AllowedCall, EventQuerySaysThatADoneEventIsDone) {
  resources all;
  place_and_call const which{GetParam(),
                             {"", [](resources& r) { return cudaEventQuery(r.event); }}};
  EXPECT_EQ(status_of(which, all), cudaSuccess);
}

TEST_P(AllowedCall, EventQuerySaysThatAPendingEventIsNotReady) {
  resources all;
  pinned_flag flag;
  must(launch_wait_flag(all.stream, flag.get()));
  must(cudaEventRecord(all.event, all.stream));
  place_and_call const which{GetParam(),
                             {"", [](resources& r) { return cudaEventQuery(r.event); }}};
  EXPECT_EQ(status_of(which, all), cudaErrorNotReady);
  flag.raise();
}

// Asks twice, since the first answer may be of an earlier call on the same internal thread.
TEST_P(AllowedCall, GetLastErrorClearsTheThreadsError) {
  resources all;
  auto const ask_twice = [](resources&) {
    static_cast<void>(cudaGetLastError());
    return cudaGetLastError();
  };
  EXPECT_EQ(status_of({GetParam(), {"", ask_twice}}, all), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Callback, AllowedCall, testing::ValuesIn(places),
                         [](auto const& one) { return std::string{one.param.name}; });

// An exec that was launched and is done, and holds the last reference to what `seen` makes: its
// destroy hands the destructor to the internal thread.
owned_exec done_exec_holding(witness& seen, cudaStream_t stream) {
  owned_graph const graph = tiny_graph();
  seen.move_to(graph);
  owned_exec result = instantiate(graph);
  must(cudaGraphLaunch(result, stream));
  must(cudaStreamSynchronize(stream));
  return result;
}

TEST(BlockedDestructor, HoldsUpHostFunctionsAndOtherDestructorsButNotKernels) {
  std::atomic<bool> entered{false};
  std::atomic<bool> gate{false};
  std::atomic<bool> host_function_ran{false};
  witness blocker{[&] {
    set_flag(&entered);
    static_cast<void>(wait_until([&] { return is_set(gate); }));
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
  ASSERT_TRUE(wait_until([&] { return is_set(entered); }));
  next_exec.reset();
  EXPECT_EQ(launch_add(stream, cell.data(), 1), cudaSuccess);
  EXPECT_EQ(cudaLaunchHostFunc(other, &set_flag, &host_function_ran), cudaSuccess);
  EXPECT_TRUE(wait_until([&] { return cell.load() == 1; }));
  EXPECT_TRUE(stays_false([&] { return is_set(host_function_ran) || next.ran(); }));
  EXPECT_FALSE(blocker.ran());

  set_flag(&gate);
  EXPECT_TRUE(next.wait());
  EXPECT_TRUE(blocker.ran());
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_TRUE(is_set(host_function_ran));
}

}  // namespace
}  // namespace escrow::test
