// reclaimable::push(), called as CUDA calls a destroy callback.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <escrow/deleter.hpp>
#include <escrow/detail/reclaimable.hpp>
#include <optional>

#include "push_arm.hpp"
#include "sleeper.hpp"
#include "status.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

// A node that counts its reclaims.
class counting_node final : public reclaimable {
 public:
  counting_node(deleter_core& hub, std::atomic<std::uint64_t>& reclaimed)
      : reclaimable(hub, release_lane::destroy, 0, &count), reclaimed_(&reclaimed) {}

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

constexpr char const* worker_name = "bench-worker";

deleter_options options(std::chrono::microseconds linger) {
  deleter_options result;
  result.thread_name = worker_name;
  result.linger = linger;
  return result;
}

class escrow_arm : public push_arm {
 public:
  escrow_arm(std::size_t nodes, std::chrono::microseconds linger) : deleter_(options(linger)) {
    for (std::size_t i = 0; i < nodes; ++i) nodes_.emplace_back(deleter_.core(), reclaimed_);
  }

  [[nodiscard]] destroy_callback callback() const override { return &push; }
  [[nodiscard]] std::size_t round_size() const override { return nodes_.size(); }
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

// The worker looks again and again, and needs no wake-up.
class awake_arm final : public escrow_arm {
 public:
  awake_arm() : escrow_arm(1024, std::chrono::hours(1)) {}
};

// The worker goes to sleep as soon as it has nothing to do, and each push wakes it.
class asleep_arm final : public escrow_arm {
 public:
  asleep_arm()
      : escrow_arm(1, std::chrono::microseconds(0)),
        worker_(worker_name),
        first_sleeps_(worker_.sleeps()) {}

  [[nodiscard]] bool begin_round() override { return worker_.wait(std::chrono::seconds(1)); }
  [[nodiscard]] std::size_t sleeps() const override { return worker_.sleeps() - first_sleeps_; }

 private:
  sleeper worker_;
  std::size_t first_sleeps_;
};

template <class Arm>
std::unique_ptr<push_arm> make() {
  return std::make_unique<Arm>();
}

}  // namespace

std::span<named_push_arm const> escrow_arms() {
  static constexpr std::array arms{
      named_push_arm{"escrow_awake", &make<awake_arm>, false},
      named_push_arm{"escrow_asleep", &make<asleep_arm>, true},
  };
  return arms;
}

}  // namespace escrow::bench
