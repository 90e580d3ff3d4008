// Separates passes from process exit.
#pragma once

#include <atomic>

namespace escrow::inline v0_1 {

// No pass begins after close(). A thread that then reads is_empty() as true knows that no pass is
// running, and sees their effects.
// Thread safety: any thread.
class shutdown_gate {
 public:
  // Begins a pass, to be ended with leave(); false if closed.
  [[nodiscard]] bool try_enter() noexcept {
    // Sequentially consistent, as close() and is_empty(): each side writes one variable and then
    // reads the other; at least one must see the other's write.
    begun_.fetch_add(1, std::memory_order_seq_cst);
    if (!is_closed_.load(std::memory_order_seq_cst)) return true;
    leave();
    return false;
  }

  void leave() noexcept {
    // Release: pairs with is_empty(), whose reader sees the pass's effects.
    begun_.fetch_sub(1, std::memory_order_release);
  }

  void close() noexcept { is_closed_.store(true, std::memory_order_seq_cst); }
  [[nodiscard]] bool is_closed() const noexcept {
    return is_closed_.load(std::memory_order_seq_cst);
  }
  [[nodiscard]] bool is_empty() const noexcept {
    return begun_.load(std::memory_order_seq_cst) == 0;
  }

 private:
  std::atomic<bool> is_closed_{false};
  std::atomic<int> begun_{0};
};

}  // namespace escrow::inline v0_1
