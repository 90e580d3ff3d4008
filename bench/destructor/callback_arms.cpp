// reclaimable::push(), called as CUDA calls a destroy callback, with Escrow's worker awake and
// asleep; the library's wakeup alone, with a thread that sleeps behind it; and an empty callback.
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <escrow/deleter.hpp>
#include <escrow/detail/reclaimable.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "callback_arms.hpp"
#include "status.hpp"
#include "wait_until.hpp"
#include "wakeup.hpp"

namespace escrow::bench {
namespace {

class empty_arm final : public callback_arm {
 public:
  empty_arm() : callback_arm([](void*) noexcept {}, 1024) {}

  [[nodiscard]] void* object(std::size_t) override { return this; }
};

constexpr char const* worker_name = "bench-worker";

// Waits, without sleeping, until `condition()` holds, a bounded time.
template <class Condition>
bool spin_until(Condition condition, std::chrono::nanoseconds bound) {
  auto const deadline = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// The word behind `wanted` in a file, or the first word; empty if there is none.
std::string word_of(std::filesystem::path const& path, std::string const& wanted = "") {
  std::ifstream file(path);
  std::string word;
  while (!wanted.empty() && file >> word && word != wanted) {
  }
  return file >> word ? word : "";
}

// A thread of this process, watched through /proc as long as it lives.
class watched_thread {
 public:
  // The only thread of this name, which it sets itself, a little after it was made.
  explicit watched_thread(std::string const& name) : status_(status_of(name)) {}

  // Waits until the thread sleeps; false if it did not within a second.
  [[nodiscard]] bool await_sleep() const {
    return spin_until([this] { return word_of(status_, "State:") == "S"; },
                      std::chrono::seconds(1));
  }
  // How often it has gone to sleep by itself since this was made.
  [[nodiscard]] std::size_t sleeps() const { return all_sleeps() - first_sleeps_; }

 private:
  static std::filesystem::path status_of(std::string const& name) {
    std::filesystem::path found;
    auto const is_there = [&] {
      for (auto const& entry : std::filesystem::directory_iterator("/proc/self/task")) {
        if (word_of(entry.path() / "comm") == name) found = entry.path() / "status";
      }
      return !found.empty();
    };
    test::must(spin_until(is_there, test::generous), "there is a thread of this name");
    return found;
  }
  [[nodiscard]] std::size_t all_sleeps() const {
    return std::stoul(word_of(status_, "voluntary_ctxt_switches:"));
  }

  std::filesystem::path status_;
  std::size_t first_sleeps_ = all_sleeps();
};

// A node that counts its reclaims.
class counting_node final : public reclaimable {
 public:
  counting_node(deleter_core& core, std::atomic<std::uint64_t>& reclaimed)
      : reclaimable(core, release_lane::destroy, 0, &count), reclaimed_(&reclaimed) {}

 private:
  // Release: pairs with the acquire in escrow_arm::end_round().
  static void count(reclaimable& node) noexcept {
    static_cast<counting_node&>(node).reclaimed_->fetch_add(1, std::memory_order_release);
  }

  std::atomic<std::uint64_t>* reclaimed_;
};

void push(void* node) noexcept {
  static_cast<counting_node*>(node)->push();
}

class escrow_arm : public callback_arm {
 public:
  escrow_arm(std::size_t nodes, std::chrono::microseconds linger)
      : callback_arm(&push, nodes), deleter_({.thread_name = worker_name, .linger = linger}) {
    for (std::size_t i = 0; i < nodes; ++i) nodes_.emplace_back(deleter_.core(), reclaimed_);
  }

  [[nodiscard]] void* object(std::size_t index) override { return &nodes_[index]; }
  void end_round() override {
    pushed_ += nodes_.size();
    // Acquire: pairs with the release in counting_node.
    test::must(
        test::wait_until([this] { return reclaimed_.load(std::memory_order_acquire) == pushed_; }),
        "the worker reclaims what was pushed");
  }

 private:
  std::atomic<std::uint64_t> reclaimed_{0};
  std::uint64_t pushed_ = 0;
  escrow::deleter deleter_;
  std::deque<counting_node> nodes_;
};

// The worker looks again and again, and needs no wakeup.
class awake_arm final : public escrow_arm {
 public:
  awake_arm() : escrow_arm(1024, std::chrono::hours(1)) {}
};

// The worker goes to sleep as soon as it has nothing to do, and each push wakes it.
class asleep_arm final : public escrow_arm {
 public:
  asleep_arm() : escrow_arm(1, std::chrono::microseconds(0)) {}

  [[nodiscard]] bool begin_round() override { return worker_.await_sleep(); }
  [[nodiscard]] std::size_t sleeps() const override { return worker_.sleeps(); }

 private:
  watched_thread worker_{worker_name};
};

class wakeup_arm final : public callback_arm {
 public:
  wakeup_arm() : callback_arm(&ring, 1) {}
  ~wakeup_arm() override {
    // Release: pairs with the acquire in answer().
    is_ending_.store(true, std::memory_order_release);
    ring(this);
    thread_.join();
  }

  [[nodiscard]] void* object(std::size_t) override { return this; }
  [[nodiscard]] bool begin_round() override { return sleeper_.await_sleep(); }
  void end_round() override {
    ++rings_;
    // Acquire: pairs with the release in answer().
    test::must(
        test::wait_until([this] { return answers_.load(std::memory_order_acquire) == rings_; }),
        "the thread wakes up");
  }
  [[nodiscard]] std::size_t sleeps() const override { return sleeper_.sleeps(); }

 private:
  static void ring(void* arm) noexcept { static_cast<wakeup_arm*>(arm)->wakeup_.notify(); }

  void answer() {
    pthread_setname_np(pthread_self(), worker_name);
    while (true) {
      // Acquire: pairs with the release in the destructor.
      auto const may_sleep = [this] { return !is_ending_.load(std::memory_order_acquire); };
      if (!wakeup_.try_sleep(may_sleep)) return;
      wakeup_.wait_for_notify();
      // Release: pairs with the acquire in end_round().
      answers_.fetch_add(1, std::memory_order_release);
    }
  }

  wakeup wakeup_;
  std::atomic<bool> is_ending_{false};
  std::atomic<std::size_t> answers_{0};
  std::size_t rings_ = 0;
  std::thread thread_{[this] { answer(); }};  // behind what it uses
  watched_thread sleeper_{worker_name};
};

template <class Arm>
std::unique_ptr<callback_arm> make() {
  return std::make_unique<Arm>();
}

// In a row of samples with a worker that sleeps, each of which takes long.
constexpr int asleep_samples_max = 10'000;

constexpr named_callback_arm arms[]{
    {.name = "empty", .setup = &make<empty_arm>},
    {.name = "escrow_awake", .setup = &make<awake_arm>},
    {.name = "escrow_asleep", .setup = &make<asleep_arm>, .times_max = asleep_samples_max},
    {.name = "wake_alone", .setup = &make<wakeup_arm>, .times_max = asleep_samples_max},
};

}  // namespace

std::span<named_callback_arm const> callback_arms() {
  return arms;
}

}  // namespace escrow::bench
