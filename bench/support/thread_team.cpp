// Threads that start each round together.
#include "thread_team.hpp"

#include <algorithm>

#include "times.hpp"

namespace escrow::bench {

thread_team::thread_team(int threads, std::function<part()> make_part)
    : count_(threads), gate_(threads + 1), seconds_(static_cast<std::size_t>(threads)) {
  for (std::size_t i = 0; i < seconds_.size(); ++i) {
    threads_.emplace_back([this, make_part, i] { run(make_part, i); });
  }
  gate_.arrive_and_wait();
}

thread_team::~thread_team() {
  is_ending_ = true;
  gate_.arrive_and_wait();
  for (std::thread& each : threads_) each.join();
}

double thread_team::round() {
  rethrow();
  // Relaxed: the gate orders it before the threads' next step.
  started_.store(0, std::memory_order_relaxed);
  gate_.arrive_and_wait();
  gate_.arrive_and_wait();
  rethrow();
  return *std::max_element(seconds_.begin(), seconds_.end());
}

void thread_team::run(std::function<part()> const& make_part, std::size_t index) {
  part mine;
  guarded([&] { mine = make_part(); });
  gate_.arrive_and_wait();
  while (true) {
    gate_.arrive_and_wait();
    if (is_ending_) return;
    start_together();
    guarded([&] {
      auto const begin = clock::now();
      mine.timed();
      seconds_[index] = seconds_since(begin);
      mine.after();
    });
    gate_.arrive_and_wait();
  }
}

// The gate wakes its threads one after the other; those that are up wait for the rest here.
void thread_team::start_together() {
  // Relaxed: only the count matters.
  started_.fetch_add(1, std::memory_order_relaxed);
  while (started_.load(std::memory_order_relaxed) < count_) std::this_thread::yield();
}

void thread_team::guarded(std::function<void()> const& step) {
  // Relaxed: a round more or less does not matter; round() reads behind the gate.
  if (has_failed_.load(std::memory_order_relaxed)) return;
  try {
    step();
  } catch (...) {
    std::lock_guard const lock(mutex_);
    if (!error_) error_ = std::current_exception();
    has_failed_.store(true, std::memory_order_relaxed);
  }
}

void thread_team::rethrow() {
  std::lock_guard const lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

}  // namespace escrow::bench
