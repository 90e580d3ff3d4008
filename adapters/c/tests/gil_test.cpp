// SPDX-License-Identifier: Apache-2.0
// A Python that calls with its lock: what waits for others lets it go. The lock is a model of it.
#include <atomic>
#include <mutex>
#include <thread>

#include "build_graph.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/escrow.h"
#include "handles.hpp"
#include "status.hpp"

namespace escrow::test {
namespace {

std::mutex gil;
thread_local bool has_gil = false;

void take_gil() {
  gil.lock();
  has_gil = true;
}
void let_gil_go() {
  has_gil = false;
  gil.unlock();
}

}  // namespace
}  // namespace escrow::test

// What the adapters find in a process that has Python.
extern "C" {
[[gnu::visibility("default")]] int Py_IsInitialized() {
  return 1;
}
[[gnu::visibility("default")]] int PyGILState_Check() {
  return escrow::test::has_gil ? 1 : 0;
}
[[gnu::visibility("default")]] void* PyEval_SaveThread() {
  escrow::test::let_gil_go();
  return &escrow::test::gil;
}
[[gnu::visibility("default")]] void PyEval_RestoreThread(void* thread) {
  escrow::test::must(thread == &escrow::test::gil, "what was let go");
  escrow::test::take_gil();
}
}

namespace escrow::test {
namespace {

std::atomic<bool> is_in_callback{false};

/// As cuda.core's, which drops a Python object.
void CUDART_CB drop_object(void* /*object*/) {
  is_in_callback = true;
  std::lock_guard const lock(gil);
}

/// A stranger's graph, which another thread destroys under Escrow's lock.
std::thread destroy_a_strangers_graph() {
  owned_graph graph = tiny_graph();
  cudaUserObject_t object = nullptr;
  must(cudaUserObjectCreate(&object, nullptr, &drop_object, 1, cudaUserObjectNoDestructorSync));
  must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  return std::thread([its = std::move(graph)]() mutable {
    graph_lifetime_lock const lock;
    owned_graph const destroyed = std::move(its);
  });
}

void expect_no_deadlock(auto&& call) {
  take_gil();
  is_in_callback = false;
  std::thread other = destroy_a_strangers_graph();
  must(wait_until([] { return is_in_callback.load(); }), "the callback waits for the lock");
  call();
  EXPECT_TRUE(has_gil) << "it is taken back";
  let_gil_go();
  other.join();
}

TEST(Gil, IsLetGoWhileACallWaitsForGraphs) {
  owned_graph const graph = tiny_graph();
  escrow_exec* exec = nullptr;
  expect_no_deadlock([&] {
    EXPECT_EQ(escrow_exec_create(graph, 0, nullptr, 0, &exec), ESCROW_OK) << escrow_last_error();
  });
  expect_no_deadlock([&] { EXPECT_EQ(escrow_exec_update(exec, graph, nullptr, 0), ESCROW_OK); });
  expect_no_deadlock([&] { escrow_exec_destroy(exec); });
  expect_no_deadlock([] {
    escrow_graphs_lock();
    escrow_graphs_unlock();
  });
}

/// As ctypes' callbacks, which take the lock: for a caller without it.
cudaError_t take_lock(void* is_in_call) {
  *static_cast<std::atomic<bool>*>(is_in_call) = true;
  std::lock_guard const lock(gil);
  return cudaSuccess;
}
cudaError_t note_lock(void* had_gil) {
  *static_cast<bool*>(had_gil) = has_gil;
  return cudaSuccess;
}

/// What was a graph that claims from `memory`: launches of these exclude each other in a group.
escrow_hoisted* hoisted_of(escrow_allocator* memory, cudaStream_t stream) {
  owned_graph graph;
  void* scratch = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  must(escrow_allocator_allocate(memory, stream, 4, 0, &scratch) == ESCROW_OK, "scratch");
  must(escrow_allocator_free(memory, stream, scratch) == ESCROW_OK, "scratch");
  must(cudaStreamEndCapture(stream, graph.out()));
  escrow_hoisted* held = nullptr;
  must(escrow_hoist(graph, nullptr, 0, &held) == ESCROW_OK, "hoist");
  return held;
}

TEST(Gil, IsLetGoWhileALaunchWaitsForItsTurnAndIsAsBeforeInItsCall) {
  constexpr std::uint64_t wait_max_ns = 10'000'000'000;
  owned_stream const one = make_stream();
  owned_stream const two = make_stream();
  escrow_options options{};
  options.size = sizeof options;
  ASSERT_EQ(escrow_group_create("of two", &options.group), ESCROW_OK);
  escrow_allocator* memory = nullptr;
  ASSERT_EQ(escrow_allocator_create(-1, &options, &memory), ESCROW_OK);
  escrow_hoisted* const first = hoisted_of(memory, one);
  escrow_hoisted* const second = hoisted_of(memory, two);

  take_gil();
  std::atomic<bool> is_in_call{false};
  std::thread other([&] {
    EXPECT_EQ(escrow_hoisted_launch(first, one, &take_lock, &is_in_call, wait_max_ns), ESCROW_OK);
  });
  must(wait_until([&] { return is_in_call.load(); }), "the other launch has the turn");
  bool had_gil = false;
  EXPECT_EQ(escrow_hoisted_launch(second, two, &note_lock, &had_gil, wait_max_ns), ESCROW_OK)
      << escrow_last_error();
  EXPECT_TRUE(had_gil) << "it is taken back for the call";
  EXPECT_TRUE(has_gil) << "and after it";
  let_gil_go();
  other.join();
  EXPECT_EQ(escrow_hoisted_launch(second, two, &note_lock, &had_gil, wait_max_ns), ESCROW_OK);
  EXPECT_FALSE(had_gil);

  EXPECT_EQ(escrow_hoisted_release(first, one), ESCROW_OK);
  EXPECT_EQ(escrow_hoisted_release(second, two), ESCROW_OK);
  escrow_allocator_destroy(memory);
  escrow_group_destroy(options.group);
}

/// Notes whether it has the lock.
cudaError_t make_and_note_lock(void* had_gil, void** resource) {
  *static_cast<bool*>(had_gil) = has_gil;
  *resource = had_gil;
  return cudaSuccess;
}

/// As a host function of Python's, for which the work behind it waits.
void CUDART_CB run_python(void* /*unused*/) {
  std::lock_guard const lock(gil);
}

TEST(Gil, IsLetGoWhileAClaimWaitsForWorkAndIsAsBeforeInTheFunctionsOfAPool) {
  owned_stream const one = make_stream();
  owned_stream const two = make_stream();
  bool had_gil = false;
  escrow_resource_functions const functions{&had_gil, &make_and_note_lock, nullptr, nullptr};
  escrow_options options{};
  options.size = sizeof options;
  options.slots_max = 1;
  escrow_allocator* memory = nullptr;
  escrow_pool* pool = nullptr;
  ASSERT_EQ(escrow_allocator_create(-1, &options, &memory), ESCROW_OK) << escrow_last_error();
  ASSERT_EQ(escrow_pool_create(-1, &functions, &options, &pool), ESCROW_OK) << escrow_last_error();
  void* address = nullptr;
  escrow_lease* lease = nullptr;
  take_gil();
  EXPECT_EQ(escrow_allocator_allocate(memory, one, 1, 0, &address), ESCROW_OK);
  EXPECT_EQ(escrow_pool_claim(pool, one, &lease), ESCROW_OK);
  EXPECT_TRUE(had_gil) << "it is taken back for the pool's functions";
  must(cudaLaunchHostFunc(one, &run_python, nullptr));
  EXPECT_EQ(escrow_allocator_free(memory, one, address), ESCROW_OK);
  EXPECT_EQ(escrow_allocator_allocate_for_host(memory, two, 1, 0, &address), ESCROW_OK)
      << escrow_last_error();
  EXPECT_TRUE(has_gil) << "it is taken back";
  EXPECT_EQ(escrow_allocator_free(memory, two, address), ESCROW_OK);
  must(cudaLaunchHostFunc(one, &run_python, nullptr));
  EXPECT_EQ(escrow_lease_release(lease, one), ESCROW_OK);
  EXPECT_EQ(escrow_pool_claim_for_host(pool, two, &lease), ESCROW_OK) << escrow_last_error();
  EXPECT_TRUE(has_gil);
  EXPECT_EQ(escrow_lease_release(lease, two), ESCROW_OK);
  let_gil_go();
  escrow_pool_destroy(pool);
  escrow_allocator_destroy(memory);
}

TEST(Gil, IsLetGoWhileACallWaitsForADestructor) {
  take_gil();
  auto const drop = [](void*) { std::lock_guard const lock(gil); };
  EXPECT_EQ(escrow_retire_now(drop, &is_in_callback), ESCROW_OK);
  bool is_drained = false;
  EXPECT_EQ(escrow_drain(10'000'000'000, &is_drained), ESCROW_OK);
  EXPECT_TRUE(is_drained);
  let_gil_go();
}

}  // namespace
}  // namespace escrow::test
