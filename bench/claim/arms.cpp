// The arms of the claim bench: the least a pool can do, Escrow, and what else there is.
#include <algorithm>
#include <array>
#include <escrow/pool.hpp>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "claim_arm.hpp"
#include "cub_allocator.hpp"
#include "handles.hpp"
#include "status.hpp"

namespace escrow::bench {
namespace {

// An arm whose threads share nothing.
template <class MakeClaimer>
class separate_arm final : public claim_arm {
 public:
  explicit separate_arm(MakeClaimer make) : make_(std::move(make)) {}
  [[nodiscard]] std::unique_ptr<claimer> make_claimer() override { return make_(); }

 private:
  MakeClaimer make_;
};

template <class MakeClaimer>
std::unique_ptr<claim_arm> separate(MakeClaimer make) {
  return std::make_unique<separate_arm<MakeClaimer>>(std::move(make));
}

std::unique_ptr<claim_arm> make_event_record() {
  return separate([] {
    return make_looping([event = test::make_event()](cudaStream_t stream) {
      test::must(cudaEventRecord(event, stream));
    });
  });
}

void ask_about(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  test::must(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
  test::must(cudaStreamGetId(stream, &id));
}

// What no event-based pool that may be called in a capture can do without.
std::unique_ptr<claim_arm> make_floor() {
  return separate([] {
    return make_looping([event = test::make_event()](cudaStream_t stream) {
      ask_about(stream);
      test::must(cudaEventRecord(event, stream));
    });
  });
}

// The same where the resource comes from another stream.
std::unique_ptr<claim_arm> make_floor_wait() {
  return separate([] {
    return make_looping([event = test::make_event()](cudaStream_t stream) {
      ask_about(stream);
      test::must(cudaStreamWaitEvent(stream, event, 0));
      test::must(cudaEventRecord(event, stream));
    });
  });
}

class escrow_arm final : public claim_arm {
 public:
  explicit escrow_arm(std::size_t slots_max)
      : pool_({.slots_max = slots_max, .label = "claim", .deleter = &deleter_},
              [] { return device_block(claimed_bytes); }) {}

  [[nodiscard]] std::unique_ptr<claimer> make_claimer() override {
    return make_looping([this](cudaStream_t stream) { pool_.claim(stream).release(); });
  }

 private:
  escrow::deleter deleter_;
  resource_pool<device_block> pool_;
};

template <std::size_t slots_max>
std::unique_ptr<claim_arm> make_escrow() {
  return std::make_unique<escrow_arm>(slots_max);
}

// PyTorch-shaped: one lock for all, a list searched for the stream's own, an event each.
class mutex_vector_arm final : public claim_arm {
 public:
  explicit mutex_vector_arm(std::size_t slots_max) : slots_max_(slots_max) {}

  [[nodiscard]] std::unique_ptr<claimer> make_claimer() override {
    return make_looping([this](cudaStream_t stream) { release(claim(stream), stream); });
  }

 private:
  struct slot {
    test::owned_event ready;
    cudaStream_t stream;
  };

  slot claim(cudaStream_t stream) {
    std::unique_lock lock(mutex_);
    auto const own = std::find_if(free_.rbegin(), free_.rend(),
                                  [=](slot const& each) { return each.stream == stream; });
    if (own != free_.rend()) {
      slot found = std::move(*own);
      free_.erase(std::next(own).base());
      return found;
    }
    if (made_ < slots_max_) {
      ++made_;
      return {test::make_event(), stream};
    }
    test::must(!free_.empty(), "a slot is free");
    slot found = std::move(free_.front());
    free_.erase(free_.begin());
    lock.unlock();
    test::must(cudaStreamWaitEvent(stream, found.ready, 0));
    return found;
  }

  void release(slot&& used, cudaStream_t stream) {
    test::must(cudaEventRecord(used.ready, stream));
    used.stream = stream;
    std::lock_guard const lock(mutex_);
    free_.push_back(std::move(used));
  }

  std::mutex mutex_;  // guards all below
  std::vector<slot> free_;
  std::size_t made_ = 0;
  std::size_t const slots_max_;
};

template <std::size_t slots_max>
std::unique_ptr<claim_arm> make_mutex_vector() {
  return std::make_unique<mutex_vector_arm>(slots_max);
}

class cub_arm final : public claim_arm {
 public:
  [[nodiscard]] std::unique_ptr<claimer> make_claimer() override {
    return make_looping(
        [this](cudaStream_t stream) { cub_->free(cub_->allocate(claimed_bytes, stream)); });
  }

 private:
  std::unique_ptr<cub_allocator> cub_ = make_cub_allocator();
};

std::unique_ptr<claim_arm> make_cub() {
  return std::make_unique<cub_arm>();
}

// The device's own pool, told to keep all memory.
std::unique_ptr<claim_arm> make_malloc_async() {
  cudaMemPool_t pool = nullptr;
  test::must(cudaDeviceGetDefaultMemPool(&pool, 0));
  std::uint64_t threshold = std::numeric_limits<std::uint64_t>::max();
  test::must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  return separate([] {
    return make_looping([](cudaStream_t stream) {
      void* memory = nullptr;
      test::must(cudaMallocAsync(&memory, claimed_bytes, stream));
      test::must(cudaFreeAsync(memory, stream));
    });
  });
}

std::unique_ptr<claim_arm> make_malloc() {
  return separate([] {
    return make_looping([](cudaStream_t) {
      void* memory = nullptr;
      test::must(cudaMalloc(&memory, claimed_bytes));
      test::must(cudaFree(memory));
    });
  });
}

std::unique_ptr<claim_arm> make_event_create() {
  return separate(
      [] { return make_looping([](cudaStream_t) { static_cast<void>(test::make_event()); }); });
}

constexpr int many = 256;  // pairs whose records all fit in CUDA's launch queue of 1,024
constexpr int few = 16;

}  // namespace

std::span<named_arm const> threaded_arms() {
  static constexpr std::array arms{
      named_arm{"event_record", &make_event_record, many},
      named_arm{"floor", &make_floor, many},
      named_arm{"escrow", &make_escrow<64>, many},
      named_arm{"mutex_vector", &make_mutex_vector<64>, many},
      named_arm{"cub", &make_cub, many, false},
      named_arm{"malloc_async", &make_malloc_async, many},
      named_arm{"malloc", &make_malloc, few},
      named_arm{"event_create", &make_event_create, many},
  };
  return arms;
}

std::span<named_arm const> ping_pong_arms() {
  static constexpr std::array arms{
      named_arm{"floor", &make_floor, many},
      named_arm{"floor_wait", &make_floor_wait, many},
      named_arm{"escrow", &make_escrow<64>, many},
      named_arm{"escrow_one_slot", &make_escrow<1>, many},
      named_arm{"mutex_vector", &make_mutex_vector<64>, many},
      named_arm{"mutex_vector_one_slot", &make_mutex_vector<1>, many},
      named_arm{"cub", &make_cub, many, false},
      named_arm{"malloc_async", &make_malloc_async, many},
  };
  return arms;
}

}  // namespace escrow::bench
