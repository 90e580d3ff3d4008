// SPDX-License-Identifier: Apache-2.0
// Threads that capture, launch and work eagerly with one sharing group, beside one that parks it,
// trims it and looks at it. No launch finds another one's values in the memory that they share.
#include <map>

#include "stress_world.hpp"

namespace escrow::test {
namespace {

class GroupStress : public world {
 protected:
  GroupStress() {
    pool_options its = options(256);
    its.group = group;
    pool.emplace(its);
  }
  void TearDown() override {
    pool.reset();
    group.reset();
    world::TearDown();
  }

  std::optional<sharing_group> group{std::in_place, sharing_options{.label = "batches"}};
  std::optional<scratch_pool> pool;
  std::atomic<bool> is_over{false};
  std::atomic<int> captures{0};
  std::atomic<int> launches{0};
  std::atomic<int> eager_runs{0};
  std::atomic<int> parks{0};
};

// One thread, with streams of its own.
class member {
 public:
  member(sharing_group& group, scratch_pool& pool, pinned_ints& mismatches, int number)
      : group_(group),
        pool_(pool),
        mismatches_(mismatches),
        random_(static_cast<std::uint64_t>(setting("ESCROW_STRESS_SEED", 1)) * 1000 +
                static_cast<std::uint64_t>(number)),
        value_(number * 1'000'000) {}

  [[nodiscard]] int below(int end) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(end));
  }
  [[nodiscard]] cudaStream_t stream() const { return first_; }

  // Claims, of which some are used on a second stream, too, that is joined.
  void enqueue() {
    std::vector<buffer_lease<int>> held;
    std::vector<int> values;
    int const count = 1 + below(5);
    for (int i = 0; i < count; ++i) {
      held.push_back(pool_.claim<int>(first_, length));
      values.push_back(++value_);
      must(launch_fill(first_, held.back().data(), length, value_));
      if (below(3) == 0) check_beside(held.back(), value_);
      if (below(3) == 0) {
        check_on(first_, held.back(), values.back());
        held.pop_back();
        values.pop_back();
      }
    }
    for (std::size_t i = 0; i < held.size(); ++i) check_on(first_, held[i], values[i]);
  }

  // A new graph, or an earlier one; launched on either stream, and perhaps ended in flight.
  void launch_one(std::atomic<int>& captures, std::atomic<int>& launches) {
    std::size_t const place = static_cast<std::size_t>(below(4));
    std::optional<graph_exec>& exec = execs_[place];
    if (!exec || below(4) == 0) {
      graph const made = escrow::capture(stream_ref(first_.get()), [this] { enqueue(); });
      exec.reset();
      exec.emplace(made);
      captures.fetch_add(1, std::memory_order_relaxed);
    }
    int const times = 1 + below(3);
    for (int i = 0; i < times; ++i) {
      exec->launch(below(2) == 0 ? first_ : second_);
      launches.fetch_add(1, std::memory_order_relaxed);
    }
    if (below(4) == 0) exec.reset();
    if (below(8) == 0) must(cudaStreamSynchronize(below(2) == 0 ? first_ : second_));
  }

  void work_eagerly() {
    group_.run(stream_ref(first_.get()), [this] { enqueue(); });
  }
  void end() {
    for (auto& each : execs_) each.reset();
    must(cudaStreamSynchronize(first_));
    must(cudaStreamSynchronize(second_));
  }

 private:
  static constexpr std::size_t length = 512;

  void check_on(cudaStream_t on, buffer_lease<int>& held, int value) {
    must(launch_check(on, held.data(), length, value, mismatches_.data()));
  }
  void check_beside(buffer_lease<int>& held, int value) {
    must(cudaEventRecord(forked_, first_));
    must(cudaStreamWaitEvent(second_, forked_, 0));
    held.record_stream(second_);
    check_on(second_, held, value);
    must(cudaEventRecord(joined_, second_));
    must(cudaStreamWaitEvent(first_, joined_, 0));
  }

  sharing_group& group_;
  scratch_pool& pool_;
  pinned_ints& mismatches_;
  std::mt19937_64 random_;
  int value_;
  owned_stream const first_ = make_stream();
  owned_stream const second_ = make_stream();
  owned_event const forked_ = make_event();
  owned_event const joined_ = make_event();
  std::array<std::optional<graph_exec>, 4> execs_;
};

TEST_F(GroupStress, LaunchesFindTheirOwnValuesBesideParkingAndEagerWork) {
  auto const until = std::chrono::steady_clock::now() + stress_time();
  auto const unless_parked = [](auto const& call) {
    try {
      call();
    } catch (usage_error const& refused) {
      if (std::string_view(refused.what()).find("is parked") == std::string_view::npos) throw;
    } catch (group_busy const&) {
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int number = 1; number <= 3; ++number) {
      threads.emplace_back([&, number] {
        member its(*group, *pool, mismatches, number);
        while (std::chrono::steady_clock::now() < until) {
          unless_parked([&] {
            if (its.below(4) != 0) return its.launch_one(captures, launches);
            its.work_eagerly();
            eager_runs.fetch_add(1, std::memory_order_relaxed);
          });
        }
        its.end();
      });
    }
    threads.emplace_back([&] {
      for (int i = 0; std::chrono::steady_clock::now() < until; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (i % 4 == 0) static_cast<void>(pool->trim());
        if (i % 4 == 1) static_cast<void>(to_json(report_memory()));
        if (i % 4 == 2) static_cast<void>(group->describe() + pool->describe());
        if (i % 4 != 3) continue;
        try {
          static_cast<void>(group->park({.wait_max = std::chrono::milliseconds(20)}));
        } catch (usage_error const&) {  // a lease lives
          continue;
        } catch (group_busy const&) {
          continue;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        static_cast<void>(group->unpark());
        parks.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  EXPECT_EQ(mismatches.load(), 0);
  for (std::atomic<int> const* const each : {&captures, &launches, &eager_runs, &parks})
    EXPECT_GT(each->load(), 0);
  std::printf("%d captures, %d launches, %d eager runs, %d parks\n", captures.load(),
              launches.load(), eager_runs.load(), parks.load());
}

}  // namespace
}  // namespace escrow::test
