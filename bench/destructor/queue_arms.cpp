// An empty callback, and queues other than Escrow's: each is taken empty after a round by the
// thread that pushed, so without contention.
#include <atomic>
#include <boost/lockfree/queue.hpp>
#include <boost/lockfree/stack.hpp>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "callback_arms.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t objects = 1024;

// `Queue` has push(node*) and drain(), and `Queue::node` is what it queues.
template <class Queue>
class queue_arm final : public callback_arm {
 public:
  queue_arm() : callback_arm(&push, objects), all_(objects) {
    for (object_in_queue& each : all_) each.queue = &queue_;
  }

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
  std::deque<object_in_queue> all_;
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
    // Relaxed: the node is still this thread's alone.
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

template <class Queue>
std::unique_ptr<callback_arm> make() {
  return std::make_unique<queue_arm<Queue>>();
}

constexpr named_callback_arm arms[]{
    {"empty", &make<no_queue>},
    {"boost_queue", &make<boost_queue>},
    {"boost_stack", &make<boost_stack>},
    {"exchange_list", &make<exchange_list>},
    {"locked_deque", &make<locked_deque>},
};

}  // namespace

std::span<named_callback_arm const> queue_arms() {
  return arms;
}

}  // namespace escrow::bench
