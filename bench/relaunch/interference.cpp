// SPDX-License-Identifier: Apache-2.0
// How long launches take, one by one at a steady pace, beside churn: Escrow's exec beside Escrow's
// churn in turns with a bare exec beside the same in plain CUDA.
//
// Churn is a thread that creates and destroys 1,000 graphs a second, each with a block of 1 MiB. A
// second thread frees the blocks once their graphs are destroyed: with plain CUDA one that takes
// them from a list, with Escrow the deleter's worker, to which the capture retires the block. There
// the capture also claims a slot, which the worker recycles.
#include <condition_variable>
#include <escrow/core.hpp>
#include <future>
#include <mutex>
#include <stop_token>
#include <thread>

#include "forms.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;
constexpr std::chrono::milliseconds churn_period{1};
constexpr std::chrono::microseconds pace{20};  // more than twice what the GPU needs for a launch
constexpr int warm_up = 200;

class plain_graphs {
 public:
  void create_and_destroy() {
    device_block block(block_bytes);
    static_cast<void>(
        test::instantiate(captured(stream_, [&] { enqueue_row(stream_, line_of_8.kernels); })));
    {
      std::lock_guard const lock(mutex_);
      blocks_.push_back(std::move(block));
    }
    changed_.notify_one();
  }

 private:
  void free_blocks(std::stop_token const& stop) {
    relaxed_capture_scope const relaxed;
    std::vector<device_block> taken;
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !blocks_.empty(); })) {
      taken.swap(blocks_);
      lock.unlock();
      taken.clear();  // frees
      lock.lock();
    }
  }

  test::owned_stream stream_ = test::make_stream();
  std::mutex mutex_;  // guards blocks_
  std::vector<device_block> blocks_;
  std::condition_variable_any changed_;
  std::jthread thread_{[this](std::stop_token const& stop) { free_blocks(stop); }};  // last
};

class escrow_graphs {
 public:
  void create_and_destroy() {
    device_block block(block_bytes);
    graph const captured = capture(stream_ref(stream_.get()), [&](stream_ref capturing) {
      auto const temporary = kept_.pool.claim(capturing);
      kept_.deleter.retire(capturing, std::move(block));
      enqueue_row(stream_, line_of_8.kernels);
    });
    graph_exec const exec(captured);
    test::must(exec.is_bare(), "the exec is bare");
  }

 private:
  test::owned_stream stream_ = test::make_stream();
  pooled_blocks kept_;
};

template <class Graphs>
void churn(std::stop_token const& stop) {
  relaxed_capture_scope const relaxed;
  Graphs graphs;
  for (auto next = clock::now(); !stop.stop_requested();) {
    graphs.create_and_destroy();
    next += churn_period;
    std::this_thread::sleep_until(next);
  }
}

// Launches at a steady pace beside a thread of churn, and adds the host times.
void launch_beside(void (*churn)(std::stop_token const&), relaunch_form const& form,
                   cudaStream_t stream, int launches, std::vector<double>& times_us) {
  std::packaged_task<void(std::stop_token)> beside(churn);
  auto ended = beside.get_future();
  std::jthread thread(std::move(beside));
  auto next = clock::now();
  for (int i = -warm_up; i < launches; ++i) {
    while (clock::now() < next) {
    }
    double const us = us_of([&] { form.launch(stream); });
    if (i >= 0) times_us.push_back(us);
    next = std::max(next + pace, clock::now());  // what is late is not made up for
  }
  thread.request_stop();
  ended.get();  // throws what the churn has thrown
  test::must(cudaStreamSynchronize(stream));
}

void run_beside_churn(benchmark::State& state, bool is_ours, int launches) {
  test::owned_stream const stream = test::make_stream();
  relaunch_form const bare = make_bare(stream, line_of_8);
  relaunch_form const form = (is_ours ? &make_escrow<0> : &make_bare)(stream, line_of_8);
  for (relaunch_form const* const each : {&bare, &form}) each->upload(stream);
  std::vector<double> bare_us, form_us;
  repeat(state, [&] {
    launch_beside(&churn<plain_graphs>, bare, stream, launches, bare_us);
    launch_beside(is_ours ? &churn<escrow_graphs> : &churn<plain_graphs>, form, stream,
                  2 * launches, form_us);
    launch_beside(&churn<plain_graphs>, bare, stream, launches, bare_us);
    return quantile(form_us, 0.999);
  });
  state.counters["p999_of_bare"] = quantile(form_us, 0.999) / quantile(bare_us, 0.999);
}

}  // namespace

void register_interference(settings const& how) {
  for (bool const is_ours : {false, true}) {
    add(is_ours ? "interference/escrow" : "interference/bare_again", {1, repetitions(how)},
        &run_beside_churn, is_ours, how.choose(5'000, 20));
  }
}

}  // namespace escrow::bench
