// An empty callback, queues other than Escrow's, and the wakeup without a queue.
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/lockfree/queue.hpp>
#include <boost/lockfree/stack.hpp>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "push_arm.hpp"
#include "sleeper.hpp"
#include "status.hpp"
#include "wait_until.hpp"
#include "wakeup.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t objects = 1024;

// An arm with one queue, taken empty after each round by the thread that pushed: no contention.
// `Queue` has push(node*) and drain(), and `Queue::node` is what it queues.
template <class Queue>
class queue_arm final : public push_arm {
 public:
  [[nodiscard]] destroy_callback callback() const override { return &push; }
  [[nodiscard]] std::size_t round_size() const override { return objects; }
  [[nodiscard]] void* object(std::size_t index) override { return &all_[index]; }
  void end_round() override { queue_.drain(); }

 private:
  struct object_in_queue : Queue::node {
    Queue* queue = nullptr;
  };

  static void push(void* argument) noexcept {
    auto* const pushed = static_cast<object_in_queue*>(argument);
    pushed->queue->push(pushed);
  }

  Queue queue_;
  std::deque<object_in_queue> all_ = [this] {
    std::deque<object_in_queue> made(objects);
    for (object_in_queue& each : made) each.queue = &queue_;
    return made;
  }();
};

struct no_queue {
  struct node {};
  void push(node*) noexcept {}
  void drain() noexcept {}
};

// A place must be there for each push: without one, the arm measures a failure.
void require_place(bool has_pushed) noexcept {
  if (!has_pushed) std::abort();
}

struct boost_queue {
  struct node {};
  void push(node* pushed) noexcept { require_place(queue.bounded_push(pushed)); }
  void drain() noexcept {
    queue.consume_all([](node*) {});
  }
  boost::lockfree::queue<node*> queue{objects};
};

struct boost_stack {
  struct node {};
  void push(node* pushed) noexcept { require_place(stack.bounded_push(pushed)); }
  void drain() noexcept {
    stack.consume_all_atomic([](node*) {});
  }
  boost::lockfree::stack<node*> stack{objects};
};

// Vyukov's: one exchange and one store, with a moment in between at which the list is in two parts.
struct exchange_list {
  struct node {
    std::atomic<node*> next{nullptr};
  };
  void push(node* pushed) noexcept {
    // Relaxed: the node is still ours alone.
    pushed->next.store(nullptr, std::memory_order_relaxed);
    // acq_rel: takes over what the last pusher wrote, and hands on what this one did.
    node* const previous = head.exchange(pushed, std::memory_order_acq_rel);
    // Release: the reader finds the node behind this link.
    previous->next.store(pushed, std::memory_order_release);
  }
  void drain() noexcept {
    // Relaxed: only the thread that pushed drains here.
    head.store(&stub, std::memory_order_relaxed);
    stub.next.store(nullptr, std::memory_order_relaxed);
  }
  node stub;
  std::atomic<node*> head{&stub};
};

struct locked_deque {
  struct node {};
  void push(node* pushed) {
    std::lock_guard const lock(mutex);
    queue.push_back(pushed);
  }
  void drain() {
    std::lock_guard const lock(mutex);
    queue.clear();
  }
  std::mutex mutex;  // guards queue
  std::deque<node*> queue;
};

// The library's wakeup with a thread that sleeps behind it.
class wake_arm final : public push_arm {
 public:
  wake_arm() : thread_([this] { answer(); }) {
    // Acquire: pairs with the release in answer().
    test::must(test::wait_until([this] { return id_.load(std::memory_order_acquire) != 0; }),
               "the thread starts");
    sleeper_.emplace(id_.load(std::memory_order_relaxed));
    first_sleeps_ = sleeper_->sleeps();
  }
  ~wake_arm() override {
    // Release: pairs with the acquire in answer().
    is_ending_.store(true, std::memory_order_release);
    ring(this);
    thread_.join();
  }

  [[nodiscard]] destroy_callback callback() const override { return &ring; }
  [[nodiscard]] std::size_t round_size() const override { return 1; }
  [[nodiscard]] void* object(std::size_t) override { return this; }
  [[nodiscard]] bool begin_round() override { return sleeper_->wait(std::chrono::seconds(1)); }
  void end_round() override {
    ++rings_;
    test::must(
        test::wait_until([this] { return answers_.load(std::memory_order_acquire) == rings_; }),
        "the thread wakes up");
  }
  [[nodiscard]] std::size_t sleeps() const override { return sleeper_->sleeps() - first_sleeps_; }

 private:
  static void ring(void* arm) noexcept { static_cast<wake_arm*>(arm)->bell_.notify(); }

  void answer() {
    id_.store(gettid(), std::memory_order_release);
    while (true) {
      // Acquire: pairs with the release in ~wake_arm().
      auto const may_sleep = [this] { return !is_ending_.load(std::memory_order_acquire); };
      if (!bell_.try_sleep(may_sleep)) return;
      bell_.wait_for_notify();
      // Release: pairs with the acquire in end_round().
      answers_.fetch_add(1, std::memory_order_release);
    }
  }

  wakeup bell_;
  std::atomic<int> id_{0};
  std::atomic<bool> is_ending_{false};
  std::atomic<std::size_t> answers_{0};
  std::size_t rings_ = 0;
  std::size_t first_sleeps_ = 0;
  std::thread thread_;
  std::optional<sleeper> sleeper_;
};

template <class Arm>
std::unique_ptr<push_arm> make() {
  return std::make_unique<Arm>();
}

}  // namespace

std::span<named_push_arm const> other_arms() {
  static constexpr std::array arms{
      named_push_arm{"empty", &make<queue_arm<no_queue>>, false},
      named_push_arm{"boost_queue", &make<queue_arm<boost_queue>>, false},
      named_push_arm{"boost_stack", &make<queue_arm<boost_stack>>, false},
      named_push_arm{"exchange_list", &make<queue_arm<exchange_list>>, false},
      named_push_arm{"locked_deque", &make<queue_arm<locked_deque>>, false},
      named_push_arm{"wake_alone", &make<wake_arm>, true},
  };
  return arms;
}

}  // namespace escrow::bench
