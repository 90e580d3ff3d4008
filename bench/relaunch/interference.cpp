// How long launches take, one by one at a steady pace, while other threads create and destroy
// graphs and free memory. Escrow's exec beside Escrow's churn takes turns with a bare exec beside
// the same churn in plain CUDA; the other arms tell what of it is the exec's, the event record's,
// and the churn's.
//
// Churn is a thread that creates and destroys 1,000 graphs a second: it makes a block of 1 MiB
// (cudaMalloc), captures 8 kernels, instantiates, and destroys exec and graph. A second thread
// frees the blocks (cudaFree), each once its graph is destroyed: with plain CUDA one that takes
// them from a list, with Escrow the deleter's worker, to which the capture retires the block. There
// the capture also claims a slot, which the worker recycles.
#include <condition_variable>
#include <escrow/core.hpp>
#include <escrow/internal/device.hpp>
#include <future>
#include <mutex>
#include <stop_token>
#include <thread>

#include "forms.hpp"
#include "graphs.hpp"

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
    {
      auto const graph = captured(stream_, [&] { enqueue_row(stream_, line_of_8.kernels); });
      test::owned_exec const exec = test::instantiate(graph);
    }
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

// Returns how many graphs there were.
template <class Graphs>
int churn(std::stop_token const& stop) {
  relaxed_capture_scope const relaxed;
  Graphs graphs;
  int created = 0;
  for (auto next = clock::now(); !stop.stop_requested(); ++created) {
    graphs.create_and_destroy();
    next += churn_period;
    std::this_thread::sleep_until(next);
  }
  return created;
}

// One sort of exec, launched beside one sort of churn.
class disturbed {
 public:
  disturbed(char const* name, bool is_churn_ours, cudaStream_t stream)
      : stream_(stream),
        form_(form_named(name).setup(stream, line_of_8)),
        churn_(is_churn_ours ? &churn<escrow_graphs> : &churn<plain_graphs>) {
    form_.upload(stream);
    test::must(cudaStreamSynchronize(stream));
  }

  // Adds the host times of `launches` launches.
  void take(int launches) {
    std::packaged_task<int(std::stop_token)> beside(churn_);
    auto created = beside.get_future();
    std::jthread thread(std::move(beside));
    auto const begin = clock::now();
    auto next = begin;
    for (int i = -warm_up; i < launches; ++i) {
      while (clock::now() < next) {
      }
      double const us = us_of([&] { form_.launch(stream_); });
      if (i >= 0) times_us_.push_back(us);
      next = std::max(next + pace, clock::now());  // what is late is not made up for
    }
    seconds_ += seconds_since(begin);
    thread.request_stop();
    graphs_ += created.get();
    test::must(cudaStreamSynchronize(stream_));
  }

  [[nodiscard]] double at_us(double share) const { return quantile(times_us_, share); }
  [[nodiscard]] std::size_t samples() const { return times_us_.size(); }

  void report(benchmark::State& state, std::string const& prefix) const {
    state.counters.insert({{prefix + "p50_us", at_us(0.5)},
                           {prefix + "p99_us", at_us(0.99)},
                           {prefix + "p999_us", at_us(0.999)},
                           {prefix + "max_us", at_us(1.0)},
                           {prefix + "graphs_per_s", graphs_ / seconds_}});
  }

 private:
  cudaStream_t stream_;
  relaunch_form form_;
  int (*churn_)(std::stop_token const&);
  std::vector<double> times_us_;
  double seconds_ = 0;
  int graphs_ = 0;
};

void run_beside_churn(benchmark::State& state, char const* name, bool is_churn_ours, int launches) {
  test::owned_stream const stream = test::make_stream();
  disturbed bare("bare", false, stream);
  disturbed form(name, is_churn_ours, stream);
  repeat(state, [&] {
    bare.take(launches);
    form.take(2 * launches);
    bare.take(launches);
    return form.at_us(0.999);
  });
  form.report(state, "");
  bare.report(state, "bare_");
  state.counters.insert(
      {{"p999_of_bare", form.at_us(0.999) / bare.at_us(0.999)}, {"samples", form.samples()}});
}

}  // namespace

void register_interference(settings const& how) {
  int const launches = how.choose(5'000, 20);
  auto const add_form = [&](std::string const& name, char const* form, bool is_churn_ours) {
    add("interference/" + name, {1, repetitions(how)}, &run_beside_churn, form, is_churn_ours,
        launches);
  };
  add_form("bare_again", "bare_again", false);
  add_form("escrow", "escrow", true);
  add_form("bare_recorded", "bare_recorded", false);
  add_form("escrow_beside_plain_churn", "escrow", false);
  add_form("bare_beside_escrow_churn", "bare", true);
}

}  // namespace escrow::bench
