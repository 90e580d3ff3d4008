// What the tests of what a graph holds for a deleter share.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "escrow/core/graph_lifetime_lock.hpp"
#include "lifetime_fixture.hpp"

namespace escrow::test {

/// An owner of an exec that was made with plain calls.
class exec_owner {
 public:
  exec_owner(owned_exec exec, fate_ptr fate)
      : exec_(std::make_shared<owned_exec>(std::move(exec))), told_(std::move(fate)) {}
  exec_owner(exec_owner&&) noexcept = default;
  exec_owner& operator=(exec_owner&&) = delete;
  ~exec_owner() {
    if (exec_ == nullptr) return;
    graph_lifetime_lock const lock;
    exec_->reset();
  }
  /// What the owner has, for as long as it exists.
  [[nodiscard]] std::weak_ptr<owned_exec> watch() const { return exec_; }

 private:
  std::shared_ptr<owned_exec> exec_;
  probe told_;
};

/// An owner that calls a function while it is moved for the first time: retire() does that after it
/// has asked for the capture, and before the graph has the owner.
class hooked_owner {
 public:
  hooked_owner(fate_ptr fate, std::function<void()> hook)
      : told_(std::move(fate)), hook_(std::move(hook)) {}
  hooked_owner(hooked_owner&& other) : told_(std::move(other.told_)) {
    if (auto const hook = std::exchange(other.hook_, {})) hook();
  }

 private:
  probe told_;
  std::function<void()> hook_;
};

class reference_set_test : public lifetime_test {
 protected:
  /// Uses a slot of `pool` and retires an owner, as a library does that knows nothing of graphs.
  void use(block_pool& pool, fate_ptr const& fate, cudaStream_t stream) {
    library_work(pool, stream, 1, mismatches);
    retire(stream, fate);
  }
  [[nodiscard]] bool are_kept(block_pool& pool, fate_ptr const& fate) {
    return is_kept(fate) && is_kept(pool);
  }
  [[nodiscard]] bool are_released(block_pool& pool, fate_ptr const& fate) {
    return is_released(fate) && is_released(pool);
  }
};

}  // namespace escrow::test
