// From cudaGraphExecDestroy to the destruction of an owner that the exec held.
#include <atomic>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "handles.hpp"
#include "kernels.hpp"
#include "measures.hpp"
#include "registering.hpp"
#include "status.hpp"
#include "times.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

// A time in ticks of the clock; 0: not yet. Shared with an owner, which may end at any time.
using shared_time = std::shared_ptr<std::atomic<std::int64_t>>;

// Says when its end came.
class last_words {
 public:
  explicit last_words(shared_time ended_at) : ended_at_(std::move(ended_at)) {}
  last_words(last_words&&) noexcept = default;
  last_words& operator=(last_words&&) = delete;
  // Release: pairs with the acquire of who waits for it.
  ~last_words() {
    if (ended_at_ == nullptr) return;
    ended_at_->store(clock::now().time_since_epoch().count(), std::memory_order_release);
  }

 private:
  shared_time ended_at_;  // null: moved from
};

// Seconds from the call of cudaGraphExecDestroy to the owner's end.
double once(escrow::deleter& deleter, cudaStream_t stream, bool is_launched) {
  auto const ended_at = std::make_shared<std::atomic<std::int64_t>>(0);
  test::owned_exec exec = [&] {
    graph const captured = capture(stream, [&](stream_ref capturing) {
      test::must(test::launch_tiny(stream));
      deleter.retire(capturing, last_words(ended_at));
    });
    return test::instantiate(captured.get());
  }();
  if (is_launched) test::must(cudaGraphLaunch(exec, stream));
  test::must(cudaStreamSynchronize(stream));
  auto const begin = clock::now();
  exec.reset();
  test::must(test::wait_until([&] { return ended_at->load(std::memory_order_acquire) != 0; }),
             "the owner is destroyed");
  clock::time_point const end{clock::duration(ended_at->load(std::memory_order_relaxed))};
  return std::chrono::duration<double>(end - begin).count();
}

void run(benchmark::State& state, bool is_launched) {
  test::owned_stream const stream = test::make_stream();
  escrow::deleter deleter;
  static_cast<void>(once(deleter, stream, is_launched));
  std::vector<double> all;
  for (auto _ : state) {
    all.push_back(once(deleter, stream, is_launched));
    state.SetIterationTime(all.back());
  }
  state.counters["p50_us"] = quantile(all, 0.5) * 1e6;
  state.counters["p99_us"] = quantile(all, 0.99) * 1e6;
}

}  // namespace

void register_reclaim_latency(settings const& how) {
  for (bool const is_launched : {false, true}) {
    add("reclaim/exec_" + std::string(is_launched ? "launched" : "never_launched"),
        how.choose(200, 50, 2), benchmark::kMicrosecond,
        [=](benchmark::State& state) { run(state, is_launched); });
  }
}

}  // namespace escrow::bench
