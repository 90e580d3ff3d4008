// Threads, streams, captures, graphs and pools at random, with every resource watched: one holder
// at a time on the host, and no work in between on the device. ESCROW_STRESS_SECONDS makes it last
// longer, ESCROW_STRESS_SEED repeats a choice of steps (not the threads' timing).
#include <array>
#include <random>
#include <thread>

#include "pool_stress_arena.hpp"

namespace escrow::test {
namespace {

// One thread's part: its streams, and steps chosen at random.
class actor {
 public:
  actor(arena& shared, std::uint64_t seed) : arena_{shared}, random_{seed} {
    for (owned_stream& stream : streams_) stream = make_stream();
  }

  void run() {
    while (!arena_.stop.load(std::memory_order_relaxed)) {
      switch (pick(8)) {
        case 0:
        case 1:
        case 2:
          use_eagerly();
          break;
        case 3:
          give_away();
          break;
        case 4:
          release_what_was_given();
          break;
        case 5:
          use_a_pool_of_ones_own();
          break;
        default:
          capture_and_launch();
          break;
      }
      if (pick(16) == 0) sync_all();
    }
    sync_all();
  }

  // A release that could not be recorded waits until the pool is given its stream.
  void give_streams_to_pool() {
    for (owned_stream const& each : streams_) static_cast<void>(arena_.pool.try_claim(each));
  }
  [[nodiscard]] int mismatches() const { return mismatches_.load(); }

 private:
  std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  cudaStream_t any_stream() { return streams_[pick(streams_.size())]; }

  void sync_all() {
    thread_mode_scope const relaxed{cudaStreamCaptureModeRelaxed};
    for (owned_stream const& stream : streams_) sync(stream);
  }

  void work(block_lease& held, cudaStream_t stream) {
    int const value = ++value_;
    fill(held, stream, value);
    check(held, stream, value, mismatches_);
  }

  void use_eagerly() {
    cudaStream_t const stream = any_stream();
    auto held = arena_.pool.try_claim(stream);
    if (!held) return;
    int const number = (*held)->number();
    arena_.take(number, arena_.new_holder());
    work(*held, stream);
    cudaStream_t const other = any_stream();
    switch (other == stream ? 0 : pick(4)) {
      case 1:  // goes on elsewhere, and ends there
        order(stream, other);
        work(*held, other);
        arena_.let_go(number);
        held->release(other);
        return;
      case 2:  // goes on elsewhere, and both streams count
        order(stream, other);
        held->record_stream(other);
        work(*held, other);
        break;
      default:
        break;
    }
    arena_.let_go(number);
    if (pick(2) == 0) held->release();
  }

  void give_away() {
    cudaStream_t const stream = streams_[2];  // never captures, so any thread may release on it
    auto held = arena_.pool.try_claim(stream);
    if (!held) return;
    arena_.take((*held)->number(), arena_.new_holder());
    work(*held, stream);
    std::lock_guard const lock{arena_.mutex};
    if (arena_.given.size() < 2) {
      arena_.given.push_back(std::move(*held));
    } else {
      arena_.let_go((*held)->number());
    }
  }

  void release_what_was_given() {
    std::vector<block_lease> mine;
    {
      std::lock_guard const lock{arena_.mutex};
      mine.swap(arena_.given);
    }
    for (block_lease& each : mine) {
      arena_.let_go(each->number());
      each.release();
    }
  }

  // A graph's claim: the first of a block by this graph, or one more after a release in it.
  std::optional<block_lease> captured_claim(cudaStream_t stream, std::uint64_t holder,
                                            std::vector<int>& numbers) {
    auto held = arena_.pool.try_claim(stream);
    if (!held) return held;
    arena_.take((*held)->number(), holder);
    numbers.push_back((*held)->number());
    work(*held, stream);
    return held;
  }

  void capture_and_launch() {
    constexpr std::array modes{cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                               cudaStreamCaptureModeRelaxed};
    cudaStream_t const stream = streams_[0];
    cudaStream_t const branch = streams_[1];
    std::uint64_t const holder = arena_.new_holder();
    std::vector<int> numbers;
    std::optional<block_lease> late;
    must(cudaStreamBeginCapture(stream, modes[pick(modes.size())]));
    must(launch_tiny(stream));
    for (std::uint64_t calls = 1 + pick(3); calls != 0; --calls) {
      if (pick(3) == 0) {
        order(stream, branch);
        static_cast<void>(captured_claim(branch, holder, numbers));
        static_cast<void>(captured_claim(stream, holder, numbers));
        order(branch, stream);
      } else {
        late = captured_claim(stream, holder, numbers);
      }
    }
    if (pick(2) == 0) late.reset();
    owned_graph graph;
    bool const spoiled = pick(16) == 0;
    if (spoiled) {
      static_cast<void>(cudaStreamQuery(stream));
      for (int const number : numbers) arena_.let_go(number);
      late.reset();
    }
    cudaError_t const ended = cudaStreamEndCapture(stream, graph.out());
    static_cast<void>(cudaGetLastError());
    if (spoiled) return;
    if (ended != cudaSuccess) arena_.harmed.fetch_add(1, std::memory_order_relaxed);
    arena_.captures.fetch_add(1, std::memory_order_relaxed);
    late.reset();
    launch_and_end(std::move(graph), numbers);
  }

  void launch_and_end(owned_graph graph, std::vector<int> const& numbers) {
    thread_mode_scope const relaxed{cudaStreamCaptureModeRelaxed};
    owned_exec exec;
    owned_graph copy;
    owned_graph last = clone(graph);  // holds the blocks until this test says that it does not
    if (pick(4) != 0) exec = instantiate(graph);
    if (pick(3) == 0) copy = clone(graph);
    if (exec.get() != nullptr) {
      for (std::uint64_t launches = pick(4); launches != 0; --launches) {
        must(cudaGraphLaunch(exec, streams_[0]));
      }
    }
    if (copy.get() != nullptr && pick(2) == 0) {
      owned_exec const of_copy = instantiate(copy);
      must(cudaGraphLaunch(of_copy, streams_[0]));
    }
    if (pick(2) == 0) graph.reset();
    if (pick(2) == 0) copy.reset();
    if (pick(2) == 0) sync(streams_[0]);
    // Whatever is left goes now: from here on the blocks may come back.
    for (int const number : numbers) arena_.let_go(number);
    last.reset();
    exec.reset();
    copy.reset();
    graph.reset();
  }

  void use_a_pool_of_ones_own() {
    tally own_counts;
    owned_graph graph;
    {
      pool_options chosen;
      chosen.slots_max = 2;
      block_pool own{chosen, [&own_counts] { return block{own_counts}; }};
      block_lease held = own.claim(streams_[2]);
      work(held, streams_[2]);
      if (pick(2) == 0) {
        must(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeGlobal));
        block_lease captured = own.claim(streams_[0]);
        work(captured, streams_[0]);
        captured.release();
        if (cudaStreamEndCapture(streams_[0], graph.out()) != cudaSuccess) {
          arena_.harmed.fetch_add(1, std::memory_order_relaxed);
        }
      }
    }
    graph.reset();
    if (!wait_until([&] { return own_counts.alive() == 0; }, std::chrono::seconds{60})) {
      std::abort();  // the counts are about to go
    }
  }

  arena& arena_;
  std::mt19937_64 random_;
  std::array<owned_stream, 3> streams_;
  pinned_ints mismatches_;
  int value_ = 0;
};

class PoolStress : public captured_pool_test {};

TEST_F(PoolStress, NoSlotIsEverInTwoHandsAndNoneIsLost) {
  constexpr std::size_t threads = 4;
  auto const duration = std::chrono::seconds{setting("ESCROW_STRESS_SECONDS", 3)};
  std::uint64_t const seed = setting("ESCROW_STRESS_SEED", 1);
  block_pool pool = make_pool(12);
  auto const shared = std::make_unique<arena>(pool);
  std::vector<std::unique_ptr<actor>> actors;
  for (std::size_t i = 0; i < threads; ++i) {
    actors.push_back(std::make_unique<actor>(*shared, seed * 1000 + i));
  }
  std::vector<std::thread> running;
  for (auto const& each : actors) running.emplace_back([&each] { each->run(); });
  static_cast<void>(wait_until([] { return false; }, duration));
  shared->stop.store(true);
  for (std::thread& each : running) each.join();
  for (block_lease& left : shared->given) left.release();
  for (auto const& each : actors) each->give_streams_to_pool();
  must(cudaDeviceSynchronize());

  EXPECT_EQ(shared->shared.load(), 0);
  EXPECT_EQ(shared->harmed.load(), 0);
  for (auto const& each : actors) EXPECT_EQ(each->mismatches(), 0);
  EXPECT_TRUE(wait_until([&] { return pool.stats().in_graphs == 0; }));
  EXPECT_EQ(pool.stats().deferred, 0u);
  EXPECT_GT(shared->captures.load(), 10);
  EXPECT_GT(shared->claims.load(), 100);
  EXPECT_LE(made(), 12);
  EXPECT_TRUE(pool.close_for(generous).empty());
}

}  // namespace
}  // namespace escrow::test
