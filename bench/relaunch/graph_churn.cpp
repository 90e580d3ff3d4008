// The two sorts of churn, with the same CUDA calls on as many threads.
#include "graph_churn.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <escrow/core.hpp>
#include <escrow/detail/device.hpp>
#include <escrow/detail/graph_query.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/retry_cleanup.hpp>
#include <escrow/graph.hpp>
#include <escrow/pool.hpp>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "handles.hpp"
#include "status.hpp"
#include "times.hpp"
#include "work.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;
constexpr std::chrono::milliseconds period{1};

// Frees blocks on a thread of its own.
class freeing_thread {
 public:
  freeing_thread() = default;
  freeing_thread(freeing_thread&&) = delete;
  ~freeing_thread() {
    {
      std::lock_guard const lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void free(device_block&& block) {
    {
      std::lock_guard const lock(mutex_);
      blocks_.push_back(std::move(block));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    relaxed_capture_scope const relaxed;
    std::vector<device_block> taken;
    std::unique_lock lock(mutex_);
    while (!is_ending_ || !blocks_.empty()) {
      changed_.wait(lock, [this] { return is_ending_ || !blocks_.empty(); });
      taken.swap(blocks_);
      lock.unlock();
      taken.clear();  // frees
      lock.lock();
    }
  }

  std::mutex mutex_;  // guards the next two
  std::vector<device_block> blocks_;
  bool is_ending_ = false;
  std::condition_variable changed_;
  std::thread thread_{[this] { run(); }};  // last: it uses the others
};

class plain_graphs {
 public:
  void create_and_destroy() {
    device_block block(block_bytes);
    {
      test::owned_graph const graph = captured(stream_, line_of_8);
      test::owned_exec const exec = test::instantiate(graph);
    }
    freeing_.free(std::move(block));
  }

 private:
  test::owned_stream stream_ = test::make_stream();
  freeing_thread freeing_;
};

class escrow_graphs {
 public:
  void create_and_destroy() {
    device_block block(block_bytes);
    work kernels(line_of_8);
    graph const captured = capture(stream_ref(stream_.get()), [&](stream_ref capturing) {
      auto const temporary = pool_.claim(capturing);
      deleter_.retire(capturing, std::move(block));
      kernels.enqueue(capturing.get());
    });
    graph_exec const exec(captured);
    test::must(exec.is_bare(), "the exec is bare");
  }

 private:
  test::owned_stream stream_ = test::make_stream();
  escrow::deleter deleter_;
  resource_pool<device_block> pool_{{.label = "churn", .deleter = &deleter_},
                                    [] { return device_block(block_bytes); }};
};

template <class Graphs>
class churn final : public graph_churn {
 public:
  churn() = default;
  churn(churn&&) = delete;
  ~churn() override { stop(); }

  [[nodiscard]] int end() override {
    stop();
    if (error_) std::rethrow_exception(error_);
    return created_;
  }

 private:
  void run() {
    try {
      relaxed_capture_scope const relaxed;
      Graphs graphs;
      // Relaxed: the order to end says nothing of anything else.
      for (auto next = clock::now(); !must_end_.load(std::memory_order_relaxed);) {
        graphs.create_and_destroy();
        ++created_;
        next += period;
        std::this_thread::sleep_until(next);
      }
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void stop() {
    must_end_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) thread_.join();
  }

  std::atomic<bool> must_end_{false};
  int created_ = 0;  // this and the next are read when the thread has been joined
  std::exception_ptr error_;
  std::thread thread_{[this] { run(); }};  // last: it uses the others
};

}  // namespace

std::unique_ptr<graph_churn> plain_churn() {
  return std::make_unique<churn<plain_graphs>>();
}

std::unique_ptr<graph_churn> escrow_churn() {
  return std::make_unique<churn<escrow_graphs>>();
}

}  // namespace escrow::bench
