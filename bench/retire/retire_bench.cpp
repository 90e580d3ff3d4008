// What it costs to hand an object over for destruction: the host's time, and the stream's.
//
// retire/host/...: microseconds per call on an idle stream. retire/stream/...: microseconds per
// turn of a tiny kernel and the call, in a long row with one synchronisation at its end; subtract
// retire/stream/nothing. retire/held/...: the same, but the row is enqueued behind a long kernel,
// so that only the stream's own time counts.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <escrow/deleter.hpp>
#include <memory>
#include <string>
#include <utility>

#include "handles.hpp"
#include "kernels.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "status.hpp"
#include "times.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

// How many owners have been destroyed.
using tally = std::atomic<std::uint64_t>;

// A small owner: as a handle would be, moved from at most once, and then counted at its end.
class counted_owner {
 public:
  explicit counted_owner(tally& destroyed) : destroyed_(&destroyed) {}
  counted_owner(counted_owner&& other) noexcept
      : destroyed_(std::exchange(other.destroyed_, nullptr)) {}
  counted_owner& operator=(counted_owner&&) = delete;
  // Release: pairs with the acquire in handing_over::await_all().
  ~counted_owner() {
    if (destroyed_ != nullptr) destroyed_->fetch_add(1, std::memory_order_release);
  }

 private:
  tally* destroyed_;
};

void CUDART_CB delete_owner(void* owner) {
  delete static_cast<counted_owner*>(owner);
}

// One way to have something done after the work on a stream. It keeps what the calls need.
class arm {
 public:
  virtual ~arm() = default;
  virtual void call(cudaStream_t stream) = 0;
  // Returns when all that was handed over has been destroyed.
  virtual void settle() {}
};

class nothing final : public arm {
 public:
  void call(cudaStream_t) override {}
};

class event_record final : public arm {
 public:
  void call(cudaStream_t stream) override { test::must(cudaEventRecord(event_, stream)); }

 private:
  test::owned_event event_ = test::make_event();
};

// An arm that hands owners over.
class handing_over : public arm {
 public:
  void settle() override {
    // Acquire: pairs with the release in ~counted_owner().
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
  [[nodiscard]] bool await_all() const {
    // Acquire: pairs with the release in ~counted_owner().
    return test::wait_until(
        [this] { return destroyed_.load(std::memory_order_acquire) == handed_over_; });
  }

  tally destroyed_{0};
  std::uint64_t handed_over_ = 0;
};

class escrow_retire final : public handing_over {
 public:
  void call(cudaStream_t stream) override { deleter_.retire(stream, next()); }

 private:
  escrow::deleter deleter_;
};

class host_function final : public handing_over {
 public:
  void call(cudaStream_t stream) override {
    auto owner = std::make_unique<counted_owner>(next());
    test::must(cudaLaunchHostFunc(stream, &delete_owner, owner.get()));
    static_cast<void>(owner.release());
  }
};

struct named_arm {
  char const* name;
  std::unique_ptr<arm> (*make)();
};

template <class Arm>
std::unique_ptr<arm> make() {
  return std::make_unique<Arm>();
}

constexpr named_arm arms[] = {
    {"nothing", &make<nothing>},
    {"event_record", &make<event_record>},
    {"escrow", &make<escrow_retire>},
    {"host_function", &make<host_function>},
};

// Host time of `calls` calls in a row, seconds.
double host_row(arm& way, cudaStream_t stream, int calls) {
  auto const begin = clock::now();
  for (int i = 0; i < calls; ++i) way.call(stream);
  return seconds_since(begin);
}

// Wall time of `calls` turns of a kernel and a call, until all are done, seconds.
double stream_row(arm& way, cudaStream_t stream, int calls) {
  auto const begin = clock::now();
  for (int i = 0; i < calls; ++i) {
    test::must(test::launch_tiny(stream));
    way.call(stream);
  }
  test::must(cudaStreamSynchronize(stream));
  return seconds_since(begin);
}

test::owned_event make_timed_event() {
  test::owned_event result;
  test::must(cudaEventCreate(result.out()));
  return result;
}

// The stream's own time: the row waits behind a kernel until all of it has been enqueued.
double held_row(arm& way, cudaStream_t stream, int calls) {
  constexpr std::uint64_t enqueue_us = 5000;  // far more than enqueuing takes
  test::owned_event const begin = make_timed_event();
  test::owned_event const end = make_timed_event();
  test::must(test::launch_sleep(stream, enqueue_us));
  test::must(cudaEventRecord(begin, stream));
  for (int i = 0; i < calls; ++i) {
    test::must(test::launch_tiny(stream));
    way.call(stream);
  }
  test::must(cudaEventRecord(end, stream));
  test::must(cudaStreamSynchronize(stream));
  float milliseconds = 0;
  test::must(cudaEventElapsedTime(&milliseconds, begin, end));
  return static_cast<double>(milliseconds) * 1e-3;
}

using row_function = double (*)(arm& way, cudaStream_t stream, int calls);

void run(benchmark::State& state, named_arm const& which, row_function row, int calls) {
  test::owned_stream const stream = test::make_stream();
  auto const way = which.make();
  auto const once = [&] {
    double const seconds = row(*way, stream, calls);
    test::must(cudaStreamSynchronize(stream));
    way->settle();
    return seconds;
  };
  constexpr int warm_up_rows = 2;
  for (int i = 0; i < warm_up_rows; ++i) static_cast<void>(once());
  for (auto _ : state) state.SetIterationTime(once() / calls);
}

struct kind {
  char const* name;
  row_function row;
  int calls_max;  // a host row and a held one, two entries a turn, fit in CUDA's launch queue
};

constexpr kind kinds[] = {
    {"host", &host_row, 256},
    {"stream", &stream_row, 1024},
    {"held", &held_row, 256},
};

}  // namespace

void register_all(settings const& how) {
  for (kind const& each : kinds) {
    int const calls = std::min(each.calls_max, how.choose(1024, 64, 4));
    for (named_arm const& which : arms) {
      add("retire/" + std::string(each.name) + "/" + which.name, how.choose(10, 5, 1),
          benchmark::kMicrosecond,
          [=](benchmark::State& state) { run(state, which, each.row, calls); });
    }
  }
}

}  // namespace escrow::bench
