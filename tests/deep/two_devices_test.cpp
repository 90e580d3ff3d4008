// Two devices: pools of both under one deleter, with the other device current at every step, all at
// once, and streams of the wrong one. Skips where there is one.
#include <thread>

#include "owners.hpp"
#include "two_devices_fixture.hpp"

namespace escrow::test {
namespace {

TEST_F(AcrossDevices, EachPoolMakesOnItsOwnDeviceWhicheverIsCurrent) {
  for (int const current : devices) {
    device_scope const there(current);
    for (int const device : devices) {
      block_lease const one = pool_of(device).claim(stream_of(device));
      block_lease const two = pool_of(device).claim(stream_of(device));
      EXPECT_EQ(device_of_memory(one->data()), device);
      EXPECT_EQ(device_of_memory(two->data()), device);
    }
    EXPECT_EQ(current_device(), current);
  }
  EXPECT_EQ(made(), 4);
}

TEST_F(AcrossDevices, ScratchOfEachDeviceIsThere) {
  for (int const device : devices) {
    scratch_pool scratch{options_of(device)};
    device_scope const there(1 - device);
    auto const held = scratch.claim(stream_of(device), 1000);
    EXPECT_EQ(device_of_memory(held->data()), device);
  }
}

TEST_F(AcrossDevices, OneDeletersOwnersAndResourcesAllEndOnTheirOwnDevice) {
  std::array<fate_ptr, 2> retired;
  std::array<fate_ptr, 2> pooled;
  for (int const device : devices) {
    retired[at(device)] = make_fate();
    pooled[at(device)] = make_fate();
    device_scope const there(1 - device);
    worker->retire(stream_of(device), probe(retired[at(device)]));
    resource_pool<probe> pool{options_of(device),
                              [fate = pooled[at(device)]] { return probe(fate); }};
    pool.claim(stream_of(device)).release();
  }
  EXPECT_TRUE(drained());
  for (int const device : devices) {
    ASSERT_TRUE(retired[at(device)]->wait());
    ASSERT_TRUE(pooled[at(device)]->wait());
    EXPECT_EQ(retired[at(device)]->device, device);
    EXPECT_EQ(pooled[at(device)]->device, device);
  }
}

TEST_F(AcrossDevices, RetireAfterWaitsForAnEventOfTheOtherDevice) {
  auto const fate = make_fate();
  owned_event ready;
  {
    device_scope const there(1);
    ready = make_event();
    must(launch_wait_flag(stream_of(1), flag.get()));
    must(cudaEventRecord(ready, stream_of(1)));
  }
  worker->retire_after(ready.get(), probe(fate));
  EXPECT_TRUE(stays_false([&] { return fate->was_destroyed(); }));
  flag.raise();
  ASSERT_TRUE(fate->wait());
  EXPECT_EQ(fate->device, 0);
  EXPECT_TRUE(drained());
}

TEST_F(AcrossDevices, BothAtOnceHarmNoCaptureAndLoseNothing) {
  constexpr int rounds = 200;
  std::array<std::atomic<int>, 2> harmed{};
  std::vector<std::thread> threads;
  threads.reserve(devices.size());
  for (int const device : devices) {
    threads.emplace_back([this, device, &harmed] {
      must(cudaSetDevice(device));
      for (int i = 0; i < rounds; ++i) {
        capture captured{stream_of(device), cudaStreamCaptureModeGlobal};
        if (auto held = pool_of(device).try_claim(stream_of(device))) work(device, *held, i);
        if (captured.end() != cudaSuccess) {
          harmed[at(device)].fetch_add(1);
          continue;
        }
        must(cudaSetDevice(1 - device));
        graph_exec exec{captured.graph()};
        exec.launch(stream_of(device));
        worker->retire(stream_of(device), std::make_unique<int>(i));
        must(cudaSetDevice(device));
      }
    });
  }
  for (std::thread& each : threads) each.join();
  sync_both();
  for (auto const& each : harmed) EXPECT_EQ(each, 0);
  EXPECT_EQ(mismatches.load(), 0);
  EXPECT_TRUE(nothing_is_in_graphs());
  EXPECT_EQ(worker->stats().leaked, 0u);
}

// A stream of the wrong device is refused in words that say which call, what, and what to do.
class WrongDevice : public AcrossDevices {
 protected:
  template <class Call>
  void expect_refused(Call call, char const* name, char const* remedy) {
    std::string const text = message_of<usage_error>(call);
    EXPECT_EQ(text.find(name), 0u) << text;
    for (char const* part : {"`stream` is not of device 0", "\"blocks of 0", remedy}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  static constexpr char const* another_pool = "use a pool of the stream's device";
};

TEST_F(WrongDevice, IsRefusedByAClaim) {
  cudaStream_t const wrong = stream_of(1);
  expect_refused([&] { static_cast<void>(pool_of(0).claim(wrong)); }, "resource_pool::claim",
                 another_pool);
  expect_refused([&] { static_cast<void>(pool_of(0).try_claim(wrong)); },
                 "resource_pool::try_claim", another_pool);
  scratch_pool scratch{options_of(0)};
  expect_refused([&] { static_cast<void>(scratch.claim(wrong, 64)); }, "scratch_pool::claim",
                 another_pool);
  EXPECT_EQ(made(), 0);
}

// The handle names another stream on each device, of which only this one's captures.
TEST_F(WrongDevice, IsRefusedForTheThreadsOwnStreamInACaptureToo) {
  device_scope const there(1);
  {
    capture captured{cudaStreamPerThread, cudaStreamCaptureModeThreadLocal};
    expect_refused([&] { static_cast<void>(pool_of(0).claim(cudaStreamPerThread)); },
                   "resource_pool::claim", another_pool);
    EXPECT_NO_THROW(pool_of(1).claim(cudaStreamPerThread).release());
    EXPECT_EQ(captured.end(), cudaSuccess);
  }
  EXPECT_EQ(pool_of(0).stats().slots, 0U);
}

TEST_F(WrongDevice, IsRefusedByARelease) {
  block_lease held = pool_of(0).claim(stream_of(0));
  expect_refused([&] { held.release(stream_of(1)); }, "lease::release",
                 "release on a stream of the pool's device");
  ASSERT_TRUE(held);
  held.record_stream(stream_of(1));  // which is what to say instead
  held.release();
}

TEST_F(WrongDevice, IsRefusedInACaptureThatSpansBothAndTheCaptureLives) {
  capture captured{stream_of(0), cudaStreamCaptureModeGlobal};
  must(launch_tiny(stream_of(0)));
  order_from(0, stream_of(0), stream_of(1));
  expect_refused([&] { static_cast<void>(pool_of(0).claim(stream_of(1))); }, "resource_pool::claim",
                 another_pool);
  EXPECT_TRUE(captured.is_active());
  block_lease held = pool_of(0).claim(stream_of(0));
  expect_refused([&] { held.release(stream_of(1)); }, "lease::release",
                 "release on a stream of the pool's device");
  EXPECT_TRUE(captured.is_active());
  held.release();
  order_from(1, stream_of(1), stream_of(0));
  EXPECT_EQ(captured.end(), cudaSuccess);
}

}  // namespace
}  // namespace escrow::test
