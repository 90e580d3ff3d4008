// Samples what stacks threads have while they do what is measured, by the clock: also where they
// wait.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <iosfwd>
#include <mutex>
#include <thread>
#include <vector>

namespace escrow::bench {

// What the calling thread does, a number from 1; 0: nothing that is sampled.
// Volatile: a signal handler of the same thread reads it.
extern constinit thread_local int volatile sampled_work;

// What: interrupts the threads that have joined, one after the other, and keeps their stacks.
// Thread safety: threads join and leave at any time; the rest by the thread that made it.
// Lifetime: one at a time; longer than its members.
// Errors: what does not fit into `samples_max` is left out.
class stack_sampler {
 public:
  // `interval`: from the interrupt of one thread to that of the next one.
  stack_sampler(std::chrono::microseconds interval, std::size_t samples_max);
  stack_sampler(stack_sampler&&) = delete;
  ~stack_sampler();

  // The thread that makes it is sampled until its end, which comes before the thread's.
  class member {
   public:
    explicit member(stack_sampler& sampler);
    member(member&&) = delete;
    ~member();

   private:
    stack_sampler& sampler_;
    pthread_t const self_;
  };

  // Writes a line for each stack of `work`: how often it was seen, and its frames, outermost first:
  // an offset in the program, for addr2line, or NAME@LIBRARY. For when no member is left.
  void write(std::ostream& to, int work) const;

 private:
  static constexpr int frames_max = 64;
  struct sample {
    int work = 0;
    int depth = 0;
    std::array<void*, frames_max> frames;
  };

  static void on_signal(int);
  void interrupt_members(std::chrono::microseconds interval);

  std::vector<sample> samples_;
  std::atomic<std::size_t> taken_{0};
  std::atomic<bool> is_ending_{false};
  std::mutex mutex_;  // guards members_
  std::vector<pthread_t> members_;
  std::thread clock_;
};

}  // namespace escrow::bench
