// An owner whose end can be watched, for what graphs hold.
#pragma once

#include <atomic>
#include <memory>

#include "wait_until.hpp"

namespace escrow::test {

/// Retire `owner()`; afterwards `is_gone()` tells whether the last copy was destroyed.
class watched_owner {
 public:
  [[nodiscard]] std::shared_ptr<void> owner() { return std::move(owner_); }
  [[nodiscard]] bool is_gone() const { return gone_->load(std::memory_order_acquire) != 0; }
  [[nodiscard]] bool wait() const {
    return wait_until([this] { return is_gone(); });
  }
  [[nodiscard]] int times() const { return gone_->load(std::memory_order_acquire); }

 private:
  std::shared_ptr<std::atomic<int>> gone_ = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<void> owner_{
      nullptr, [gone = gone_](void*) { gone->fetch_add(1, std::memory_order_release); }};
};

}  // namespace escrow::test
