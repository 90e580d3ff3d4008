// What keeps passes and the end of the process apart.
#pragma once

#include <atomic>

namespace escrow {

// From close() on no pass begins, and who has seen is_empty() after that knows that none is under
// way, and sees what they did.
// Thread safety: any thread.
class shutdown_gate {
 public:
  // Begins a pass, to be ended with leave(); false once the gate is closed.
  [[nodiscard]] bool try_enter() noexcept {
    // Sequentially consistent, as close() and is_empty(): each side writes one of the two and then
    // reads the other, and one of them at least must see what the other wrote.
    begun_.fetch_add(1, std::memory_order_seq_cst);
    if (!is_closed_.load(std::memory_order_seq_cst)) return true;
    leave();
    return false;
  }

  void leave() noexcept {
    // Release: pairs with is_empty(), which sees what the pass did.
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

}  // namespace escrow
