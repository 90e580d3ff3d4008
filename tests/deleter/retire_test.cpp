// SPDX-License-Identifier: Apache-2.0
// Retiring: not before the work is done, soon after it, on the worker; in captures until the graph
// is destroyed. Owners of every kind, calls that are refused, two devices.
#include <array>

#include "world.hpp"

namespace escrow::test {
namespace {

using Retire = world;

TEST_F(Retire, DestroysNotBeforeTheWorkIsDoneAndSoonAfter) {
  auto const fate = make_fate();
  hold_up(one);
  retire(one, fate);
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
}

TEST_F(Retire, DestroysOnOneWorkerThreadUnderItsNameInRelaxedMode) {
  std::array const fates{make_fate(), make_fate(), make_fate()};
  deleter named(deleter_options{.thread_name = "a-name-that-is-too-long"});
  named.retire(one, probe(fates[0]));
  named.retire(probe(fates[1]));
  owned_event const done = make_event();
  named.retire_after(done.get(), probe(fates[2]));
  for (auto const& fate : fates) {
    ASSERT_TRUE(fate->wait());
    EXPECT_NE(fate->thread, std::this_thread::get_id());
    EXPECT_EQ(fate->thread, fates[0]->thread);
    EXPECT_EQ(fate->thread_name, "a-name-that-is-");
    EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  }
}

TEST_F(Retire, WaitsForItsOwnStreamOrEventAlone) {
  std::vector<fate_ptr> blocked;
  std::vector<fate_ptr> free;
  owned_event const not_ready = make_event();
  owned_event const ready = make_event();
  hold_up(one);
  must(cudaEventRecord(not_ready, one));
  must(cudaEventRecord(ready, two));
  worker->retire_after(not_ready.get(), probe(blocked.emplace_back(make_fate())));
  worker->retire_after(ready.get(), probe(free.emplace_back(make_fate())));
  worker->retire(probe(free.emplace_back(make_fate())));
  for (int i = 0; i < 50; ++i) {
    retire(one, blocked.emplace_back(make_fate()));
    retire(two, free.emplace_back(make_fate()));
  }
  for (auto const& fate : free) EXPECT_TRUE(is_released(fate));
  for (auto const& fate : blocked) EXPECT_TRUE(is_out(fate));
  flag.raise();
  for (auto const& fate : blocked) EXPECT_TRUE(is_released(fate));
}

TEST_F(Retire, AfterAnEventThatIsMovedInKeepsItUntilTheOwnerIsDestroyed) {
  auto const fate = make_fate();
  hold_up(one);
  {
    event done;
    done.ref().record(one);
    worker->retire_after(std::move(done), probe(fate));
    EXPECT_FALSE(done);  // NOLINT(bugprone-use-after-move): that is the question
  }
  EXPECT_TRUE(stays_kept(fate));
  flag.raise();
  EXPECT_TRUE(is_released(fate));
}

TEST_F(Retire, DoesNotWaitForWorkThatIsEnqueuedLater) {
  auto const fate = make_fate();
  must(launch_tiny(one));
  retire(one, fate);
  hold_up(one);
  EXPECT_TRUE(is_released(fate));
}

// Owners. retired_object stores small ones in place.

template <std::size_t size, std::size_t alignment = alignof(probe)>
struct alignas(alignment) padded {
  explicit padded(fate_ptr fate) : inner(std::move(fate)) { bytes.fill(7); }
  padded(padded&&) noexcept = default;
  ~padded() {
    // Volatile: a compiler may take it for granted.
    std::uintptr_t const volatile address = reinterpret_cast<std::uintptr_t>(this);
    EXPECT_EQ(address % alignment, 0U);
  }
  probe inner;
  std::array<unsigned char, size> bytes;
};

TEST_F(Retire, DestroysOwnersOfAnySizeAndAlignmentOnce) {
  std::vector<fate_ptr> fates;
  auto const next = [&] { return fates.emplace_back(make_fate()); };
  worker->retire(one, padded<1>(next()));
  worker->retire(one, padded<retired_object::capacity - sizeof(probe)>(next()));
  worker->retire(one, padded<retired_object::capacity - sizeof(probe) + 1>(next()));
  worker->retire(one, padded<100'000>(next()));
  worker->retire(padded<100'000>(next()));
  worker->retire(tiny_graph().get(), padded<100'000>(next()));
  worker->retire(one, padded<1, 256>(next()));
  worker->retire(one, std::pair(std::make_unique<probe>(next()), std::string(100, 'x')));
  worker->drain();
  for (auto const& fate : fates) EXPECT_EQ(fate->times(), 1);
}

TEST_F(Retire, CopiesASharedPointerAndDropsTheCopy) {
  auto const fate = make_fate();
  auto shared = std::make_shared<probe>(fate);
  std::shared_ptr<probe> const kept = shared;
  worker->retire(one, kept);
  worker->retire(one, shared);  // a copy: the caller's stays as it is
  ASSERT_NE(shared, nullptr);
  worker->retire(one, std::move(shared));
  worker->drain();
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_TRUE(is_out(fate));
}

template <std::size_t size>
struct throws_when_moved {
  explicit throws_when_moved(fate_ptr fate) : inner(std::move(fate)) {}
  [[nodiscard]] bool is_owner() const { return inner.is_owner(); }
  throws_when_moved(throws_when_moved&& other) : inner(make_fate()) {
    if (other.inner.is_owner()) throw std::runtime_error("cannot be moved");
  }
  probe inner;
  std::array<std::byte, size> bytes{};
};

// Calls each overload with an owner that it refuses by `Exception`: the caller keeps it.
template <class Exception, class Owner>
void expect_refused_by_each_overload(deleter& its, cudaStream_t stream) {
  auto const fate = make_fate();
  Owner owner(fate);
  EXPECT_THROW(its.retire(stream, std::move(owner)), Exception);
  EXPECT_THROW(its.retire(std::move(owner)), Exception);
  EXPECT_THROW(its.retire(tiny_graph().get(), std::move(owner)), Exception);
  EXPECT_THROW(its.retire_after(make_event().get(), std::move(owner)), Exception);
  event ready;
  EXPECT_THROW(its.retire_after(std::move(ready), std::move(owner)), Exception);
  EXPECT_TRUE(ready);  // NOLINT(bugprone-use-after-move): that is the question
  its.drain();
  EXPECT_TRUE(owner.is_owner());  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_FALSE(fate->was_destroyed());
  EXPECT_EQ(its.stats().in_graphs, 0U);
}

TEST_F(Retire, LeavesAnOwnerWhoseMoveThrowsWithTheCaller) {
  for (int round = 0; round < 3; ++round) {
    expect_refused_by_each_overload<std::runtime_error, throws_when_moved<1>>(*worker, one);
    expect_refused_by_each_overload<std::runtime_error, throws_when_moved<1000>>(*worker, one);
  }
}

TEST_F(Retire, LeavesTheOwnerWithTheCallerOnceStopped) {
  worker->stop();
  expect_refused_by_each_overload<usage_error, probe>(*worker, one);
  test::capture open(one, cudaStreamCaptureModeGlobal);
  EXPECT_THROW(retire(one, make_fate()), usage_error);
  EXPECT_EQ(open.end(), cudaSuccess) << "the refusal harmed the capture";
}

TEST_F(Retire, IsRefusedByATextThatNamesTheCallAndTheWayOut) {
  auto const fate = make_fate();
  probe owner(fate);
  auto const retire_on = [&](cudaStream_t on) { worker->retire(on, std::move(owner)); };
  std::string const call = "deleter::retire";
  expect_refused({{call,
                   {"`stream`", "invalidated", "end the capture, leave out the call"},
                   [&] {
                     test::capture const open(one, cudaStreamCaptureModeGlobal);
                     must(cudaDeviceSynchronize() != cudaSuccess, "it is invalidated");
                     static_cast<void>(cudaGetLastError());
                     retire_on(one);
                   }},
                  {call,
                   {"`stream`", "legacy", "blocking"},
                   [&] {
                     owned_stream const blocking = make_stream(cudaStreamDefault);
                     test::capture const open(blocking, cudaStreamCaptureModeThreadLocal);
                     retire_on(cudaStreamLegacy);
                   }},
                  {call, {"stopped", "before stop()"}, [&] {
                     worker->stop();
                     retire_on(one);
                   }}});
  EXPECT_TRUE(owner.is_owner());
  EXPECT_TRUE(is_kept(fate));
  EXPECT_EQ(worker->stats().in_graphs + worker->stats().leaked, 0U);
}

TEST_F(Retire, BehindWhatHasNoEndIsRefusedAndTheCallerKeepsTheOwner) {
  event const recorded_in_capture;
  static_cast<void>(
      captured_plainly([&](cudaStream_t on) { recorded_in_capture.ref().record(on); }));
  probe owner(make_fate());
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  expect_error<cuda_error>(
      [&] { worker->retire_after(recorded_in_capture.ref(), std::move(owner)); },
      {"deleter::retire_after", "`ready` was recorded in a capture", "outside of captures"});
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice) << "the caller's error stays";
  graph none;
  static_cast<void>(owned_graph(none.detach()));
  expect_error<usage_error>([&] { worker->retire(none.get(), std::move(owner)); },
                            {"deleter::retire", "`graph` is null", "pass a graph that exists"});
  EXPECT_TRUE(owner.is_owner());
}

TEST_F(Retire, BehindAnEventInACudaCallback) {
  event const ready;
  ready.ref().record(two);
  auto const fate = make_fate();
  std::string thrown;
  auto call = [&] {
    try {
      worker->retire_after(ready.ref(), probe(fate));
    } catch (std::exception const& error) {
      thrown = error.what();
    }
  };
  must(cudaLaunchHostFunc(
      one, [](void* its) { (*static_cast<decltype(call)*>(its))(); }, &call));
  sync(one);
  EXPECT_EQ(thrown, "");
  EXPECT_TRUE(is_released(fate));
}

TEST_F(Retire, InACaptureAddsNoNodeAndKeepsTheOwnerUntilTheGraphIsDestroyed) {
  for (cudaStreamCaptureMode const mode : all_capture_modes) {
    auto const fate = make_fate();
    test::capture open(one, mode);
    must(launch_tiny(one));
    retire(one, fate);
    must(launch_tiny(one));
    must(open.end());
    EXPECT_EQ(node_count(open.graph()), 2U);
    EXPECT_EQ(edge_count(open.graph()), 1U);
    EXPECT_TRUE(wait_until([&] { return worker->stats().in_graphs == 1; }));
    EXPECT_TRUE(is_kept(fate));
    open.graph().reset();
    EXPECT_TRUE(is_released(fate));
    EXPECT_EQ(fate->mode, cudaStreamCaptureModeRelaxed);
  }
}

using RetireOnTwoDevices = world_of_two_devices;

TEST_F(RetireOnTwoDevices, IsNotMisledByAnOwnerThatLeavesAnotherDeviceCurrent) {
  auto const careless = make_fate([] { static_cast<void>(cudaSetDevice(1)); });
  auto const next = make_fate();
  hold_up(one);
  retire(one, careless);
  retire(one, next);
  flag.raise();  // both in one pass
  ASSERT_TRUE(is_released(careless) && is_released(next));
  EXPECT_EQ(next->device, 0);
}

}  // namespace
}  // namespace escrow::test
