// What it costs to hand an object over for destruction: the host's time, and the stream's.
//
// retire/host/...: microseconds per call on an idle stream. retire/stream/...: microseconds per
// turn of a tiny kernel and the call, in a long row with one synchronization at its end; subtract
// retire/stream/nothing. retire/held/...: the same, but the row is enqueued behind a long kernel,
// so that only the stream's own time counts.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "bench.hpp"
#include "graphs.hpp"
#include "timing.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

using tally = std::atomic<std::uint64_t>;

// Release: pairs with the acquire in retiring::settle().
void count(tally& destroyed) noexcept {
  destroyed.fetch_add(1, std::memory_order_release);
}

using counted_owner = telling_owner<tally, &count>;

// One way to have something done after the work on a stream. It keeps what the calls need.
class retiring {
 public:
  virtual ~retiring() = default;
  virtual void call(cudaStream_t) {}
  // Returns when all that was handed over has been destroyed.
  void settle() const {
    // Acquire: pairs with the release in count().
    test::must(test::wait_until(
                   [this] { return destroyed_.load(std::memory_order_acquire) == handed_over_; }),
               "all owners have been destroyed");
  }

 protected:
  counted_owner next() {
    ++handed_over_;
    return counted_owner(destroyed_);
  }

 private:
  tally destroyed_{0};
  std::uint64_t handed_over_ = 0;
};

class event_record final : public retiring {
 public:
  void call(cudaStream_t stream) override { test::must(cudaEventRecord(event_, stream)); }

 private:
  test::owned_event event_ = test::make_event();
};

class escrow_retire final : public retiring {
 public:
  void call(cudaStream_t stream) override { deleter_.retire(stream, next()); }

 private:
  escrow::deleter deleter_;
};

void CUDART_CB delete_owner(void* owner) {
  delete static_cast<counted_owner*>(owner);
}

class host_function final : public retiring {
 public:
  void call(cudaStream_t stream) override {
    auto owner = std::make_unique<counted_owner>(next());
    test::must(cudaLaunchHostFunc(stream, &delete_owner, owner.get()));
    static_cast<void>(owner.release());
  }
};

using retire_arm = arm<std::unique_ptr<retiring>()>;

template <class Arm>
std::unique_ptr<retiring> make() {
  return std::make_unique<Arm>();
}

constexpr retire_arm arms[]{
    {"nothing", &make<retiring>},
    {"event_record", &make<event_record>},
    {"escrow", &make<escrow_retire>},
    {"host_function", &make<host_function>},
};

// Host time of `calls` calls in a row, microseconds.
double host_row(retiring& way, cudaStream_t stream, int calls) {
  return us_of([&] {
    for (int i = 0; i < calls; ++i) way.call(stream);
  });
}

void enqueue_turns(retiring& way, cudaStream_t stream, int calls) {
  for (int i = 0; i < calls; ++i) {
    test::must(test::launch_tiny(stream));
    way.call(stream);
  }
}

// Wall time of `calls` turns of a kernel and a call, until all are done.
double stream_row(retiring& way, cudaStream_t stream, int calls) {
  return us_of([&] {
    enqueue_turns(way, stream, calls);
    test::must(cudaStreamSynchronize(stream));
  });
}

// The stream's own time: the row waits behind a kernel until all of it has been enqueued.
double held_row(retiring& way, cudaStream_t stream, int calls) {
  constexpr std::uint64_t enqueue_us = 5000;  // far more than enqueuing takes
  test::owned_event begin, end;               // that take the time
  for (auto* const each : {&begin, &end}) test::must(cudaEventCreate(each->out()));
  test::must(test::launch_sleep(stream, enqueue_us));
  test::must(cudaEventRecord(begin, stream));
  enqueue_turns(way, stream, calls);
  test::must(cudaEventRecord(end, stream));
  test::must(cudaStreamSynchronize(stream));
  float milliseconds = 0;
  test::must(cudaEventElapsedTime(&milliseconds, begin, end));
  return static_cast<double>(milliseconds) * 1e3;
}

using row_function = double (*)(retiring& way, cudaStream_t stream, int calls);

void run(benchmark::State& state, retire_arm const& which, row_function row, int calls) {
  test::owned_stream const stream = test::make_stream();
  auto const way = which.setup();
  auto const once = [&] {
    double const us = row(*way, stream, calls);
    test::must(cudaStreamSynchronize(stream));
    way->settle();
    return us;
  };
  constexpr int warm_up_rows = 2;
  for (int i = 0; i < warm_up_rows; ++i) static_cast<void>(once());
  for (auto _ : state) state.SetIterationTime(once() * 1e-6 / calls);
}

struct kind {
  char const* name;
  row_function row;
  int calls_max;  // a host row and a held one, two entries a turn, fit in CUDA's launch queue
};

constexpr kind kinds[]{
    {"host", &host_row, 256}, {"stream", &stream_row, 1024}, {"held", &held_row, 256}};

}  // namespace

void register_all(settings const& how) {
  for (kind const& each : kinds) {
    int const calls = std::min(each.calls_max, how.choose(1024, 64, 4));
    for (retire_arm const& which : arms) {
      add("retire/" + std::string(each.name) + "/" + which.name, {how.choose(10, 5, 1)},
          benchmark::kMicrosecond,
          [=](benchmark::State& state) { run(state, which, each.row, calls); });
    }
  }
}

}  // namespace escrow::bench
