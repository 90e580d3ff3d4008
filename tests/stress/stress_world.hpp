// SPDX-License-Identifier: Apache-2.0
// What the stress tests share: threads that take random steps, and owners and slots that notice
// when they are used wrongly. ESCROW_STRESS_SECONDS makes a test last longer (3),
// ESCROW_STRESS_SEED repeats its choices (not the threads' timing).
#pragma once

#include <array>
#include <cstdlib>
#include <random>

#include "deep.hpp"
#include "world.hpp"

namespace escrow::test {

/// A number that the environment gives, or another.
[[nodiscard]] inline double setting(char const* name, double otherwise) {
  char const* const given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtod(given, nullptr);
}

/// How long a test runs, unless it has as many rounds as it wants before that.
[[nodiscard]] inline std::chrono::milliseconds stress_time() {
  return std::chrono::milliseconds(static_cast<long>(setting("ESCROW_STRESS_SECONDS", 3) * 1000));
}

/// For the test's own calls that a capture does not allow.
auto relaxed(auto call) {
  thread_mode_scope const scope(cudaStreamCaptureModeRelaxed);
  return call();
}

/// What the threads of a test share, and what they found wrong.
struct arena {
  static constexpr std::size_t slots_max = 48;

  arena(deleter& its, pinned_ints& mismatches, block_pool* common = nullptr)
      : worker(its), wrong(mismatches), pool(common) {}

  /// Acquire: what they refer to may end then.
  [[nodiscard]] bool are_owners_destroyed() const {
    return destroyed.load(std::memory_order_acquire) == made.load();
  }

  deleter& worker;
  pinned_ints& wrong;  // what kernels found
  block_pool* pool;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> made{0};  // owners
  std::atomic<std::uint64_t> destroyed{0};
  std::atomic<std::uint64_t> early{0};         // before the work that they were for was done
  std::atomic<std::uint64_t> shared{0};        // slots that two holders had
  std::atomic<std::uint64_t> harmed{0};        // captures
  std::atomic<std::uint64_t> with_objects{0};  // execs that were expected to be bare
  std::atomic<std::uint64_t> captures{0};
  std::atomic<std::uint64_t> claims{0};
  std::atomic<std::uint64_t> launches{0};
  std::atomic<std::uint64_t> updates{0};
  std::atomic<std::uint64_t> switches{0};  // of sets
  // One cell for each slot: work with the slot adds 1 at its beginning and takes it back at its
  // end.
  pinned_ints in_use{slots_max};
  // Which holder has each slot, or 0. Relaxed: the pool has to bring the order, and whether it does
  // is what the test is to find out.
  std::array<std::atomic<std::uint64_t>, slots_max> holders{};
  std::atomic<std::uint64_t> next_holder{1};
};

/// A lease, or a graph with all that was created from it: it may have several slots, one at a time
/// may have each. Let it end before what it stands for does.
class slot_holder {
 public:
  explicit slot_holder(arena& all) : arena_(all), id_(all.next_holder.fetch_add(1)) {}
  slot_holder(slot_holder&&) = delete;
  ~slot_holder() {
    for (std::size_t const each : numbers_)
      arena_.holders[each].store(0, std::memory_order_relaxed);
  }

  void take(block_lease& held) {
    auto const number = static_cast<std::size_t>(held->number());
    auto const had = arena_.holders[number].exchange(id_, std::memory_order_relaxed);
    if (had != 0 && had != id_) arena_.shared.fetch_add(1, std::memory_order_relaxed);
    arena_.claims.fetch_add(1, std::memory_order_relaxed);
    numbers_.push_back(number);
  }

 private:
  arena& arena_;
  std::uint64_t id_;
  std::vector<std::size_t> numbers_;
};

/// Work that owners are for: each launch adds 1 to a cell.
class work {
 public:
  work(pinned_ints& cells, std::size_t index) : cells_(&cells), index_(index) {}

  /// Enqueues it; it is expected unless a capture records it.
  void enqueue(cudaStream_t stream) { must(launch_add(stream, cells_->data() + index_, 1)); }
  /// Before each launch.
  void expect(int launches = 1) { expected_->fetch_add(launches, std::memory_order_release); }
  [[nodiscard]] bool is_done() const {
    return cells_->load(index_) == expected_->load(std::memory_order_acquire);
  }

 private:
  pinned_ints* cells_;
  std::size_t index_;
  std::shared_ptr<std::atomic<int>> expected_ = std::make_shared<std::atomic<int>>(0);
};

/// Has to be destroyed once, when its work is done.
class owner {
 public:
  owner(arena& all, work its) : arena_(&all), work_(std::move(its)) {
    all.made.fetch_add(1, std::memory_order_relaxed);
  }
  owner(owner&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)), work_(other.work_) {}
  ~owner() {
    if (arena_ == nullptr) return;
    if (!work_.is_done()) arena_->early.fetch_add(1, std::memory_order_relaxed);
    arena_->destroyed.fetch_add(1, std::memory_order_release);
  }

 private:
  arena* arena_;
  work work_;
};

/// One thread: its streams, of which the first two may capture, and its steps.
class actor {
 public:
  actor(arena& all, std::uint64_t number, std::size_t cells = 200'000)
      : arena_(all),
        cells_(cells),
        random_(static_cast<std::uint64_t>(setting("ESCROW_STRESS_SEED", 1)) * 1000 + number),
        value_(static_cast<int>(number) * 10'000'000) {
    for (owned_stream& each : streams_) each = make_stream();
  }
  actor(actor&&) = delete;
  virtual ~actor() = default;

  void run() {
    for (int i = 1; !arena_.stop.load(std::memory_order_relaxed) && next_ + 16 < cells_.size();
         ++i) {
      step();
      if (i % sync_interval_ == 0) sync_streams();
    }
    sync_streams();
  }
  /// After all threads have ended.
  virtual void end() {}

 protected:
  virtual void step() = 0;

  [[nodiscard]] std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  /// Does one of these steps; what is there twice is done twice as often.
  template <class Actor>
  void one_of(std::initializer_list<void (Actor::*)()> steps) {
    (static_cast<Actor*>(this)->**(steps.begin() + pick(steps.size())))();
  }
  [[nodiscard]] bool coin() { return pick(2) == 0; }
  [[nodiscard]] cudaStreamCaptureMode any_mode() { return all_capture_modes[pick(3)]; }
  [[nodiscard]] cudaStream_t any_stream() { return streams_[pick(streams_.size())]; }
  [[nodiscard]] work new_work() { return {cells_, next_++}; }
  void sync_streams() {
    relaxed([this] {
      for (owned_stream const& each : streams_) sync(each);
    });
  }
  /// Whoever works with the slot at the same time is seen, whatever it writes.
  void use_slot(block_lease& held, cudaStream_t stream) {
    int* const cell = arena_.in_use.data() + held->number();
    int* const wrong = arena_.wrong.data();
    must(launch_add(stream, cell, 1));
    must(launch_check(stream, cell, 1, 1, wrong));
    fill(held, stream, ++value_);
    check(held, stream, value_, arena_.wrong);
    must(launch_check(stream, cell, 1, 1, wrong));
    must(launch_add(stream, cell, -1));
  }

  arena& arena_;
  std::array<owned_stream, 3> streams_;
  int sync_interval_ = 16;  // steps

 private:
  pinned_ints cells_;  // each is used once
  std::mt19937_64 random_;
  int value_;  // no other actor writes it
  std::size_t next_ = 0;
};

class stress : public world {
 protected:
  using actors = std::vector<std::unique_ptr<actor>>;

  /// Runs actors on a thread each until the time is over and, on a machine that is busy, until they
  /// have done `enough`. Expects that nothing was destroyed or reused early, twice or never. They
  /// end after that: owners refer to their cells.
  template <class Actor, class... Arguments>
  void run_mix(std::uint64_t count, std::function<bool()> const& enough, arena& all,
               Arguments&... given) {
    actors mix;
    for (std::uint64_t i = 1; i <= count; ++i)
      mix.push_back(std::make_unique<Actor>(all, i, given...));
    {
      std::vector<std::jthread> threads;
      for (auto const& each : mix) threads.emplace_back([&each] { each->run(); });
      std::this_thread::sleep_for(stress_time());
      EXPECT_TRUE(wait_until(enough, std::chrono::minutes(1))) << "the threads do hardly anything";
      all.stop.store(true, std::memory_order_relaxed);
    }
    for (auto const& each : mix) each->end();
    must(cudaDeviceSynchronize());
    expect_nothing_lost(all);
  }

  /// Always on a GPU, which does not tell.
  [[nodiscard]] static bool no_graph_is_alive() {
#ifdef ESCROW_TEST_RUNTIME_SIM
    sim::counts const alive = sim::alive();
    return alive.graphs + alive.execs + alive.execs_in_flight + alive.user_objects == 0;
#else
    return true;
#endif
  }

  void expect_nothing_lost(arena& all) {
    auto const is_over = [&] {
      return drained() && worker->stats().in_graphs == 0 && graph_registry::global().is_empty() &&
             all.are_owners_destroyed() && no_graph_is_alive();
    };
    EXPECT_TRUE(wait_until(is_over, 4 * generous));
    EXPECT_TRUE(no_graph_is_alive());
    EXPECT_EQ(all.destroyed, all.made) << "owners were lost";
    EXPECT_EQ(all.early, 0U) << "owners were destroyed before their work was done";
    EXPECT_EQ(all.shared, 0U) << "slots had two holders";
    EXPECT_EQ(all.harmed, 0U) << "captures were harmed";
    EXPECT_EQ(all.with_objects, 0U) << "execs were not bare";
    EXPECT_EQ(mismatches.load(), 0) << "two uses of a slot overlapped";
    deleter_stats const left = worker->stats();
    EXPECT_EQ(left.pending + left.in_graphs + left.leaked + left.errors, 0U);
    if (all.pool == nullptr) return;
    EXPECT_EQ(all.pool->stats().in_graphs + all.pool->stats().deferred, 0U);
    EXPECT_TRUE(all.pool->close_for(generous).empty());
  }
};

}  // namespace escrow::test
