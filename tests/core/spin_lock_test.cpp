// A thread that waits for a spin lock leaves its core to the holder.
#include "escrow/detail/spin_lock.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <thread>

namespace escrow {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

nanoseconds cpu_time_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

TEST(SpinLock, IsWaitedForAsleepIfTheHolderDoesNotRun) {
  spin_lock lock;
  lock.lock();
  nanoseconds used{};
  std::thread waiter([&] {
    nanoseconds const before = cpu_time_of_this_thread();
    lock.lock();
    used = cpu_time_of_this_thread() - before;
    lock.unlock();
  });
  std::this_thread::sleep_for(milliseconds(200));
  lock.unlock();
  waiter.join();
  EXPECT_LT(used, milliseconds(50));
}

}  // namespace
}  // namespace escrow
