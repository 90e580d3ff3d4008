// What one version of a node's parameters keeps alive.
#pragma once

#include <memory>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/retired_object.hpp"

namespace escrow::inline v0_1::detail {

// What: an owner for a graph node, or nothing. Created before the CUDA call that may fail, so that
//   nothing is allocated afterwards.
// Thread safety: a value; needs exclusive access.
// Lifetime: an owner that is not handed on is destroyed with it, on this thread.
// Capture: calls no CUDA function.
// Errors: the constructor throws usage_error if the deleter was stopped, std::bad_alloc, and what
//   moving the owner throws.
class node_payload {
 public:
  node_payload() noexcept = default;
  // `placed` receives the owner's final address.
  template <class Owner>
  node_payload(deleter_core& core, Owner owner, Owner*& placed) : owner_(take(core)) {
    placed = &owner_->emplace(std::move(owner));
  }

  [[nodiscard]] retired_object* get() const noexcept { return owner_.get(); }
  // Transfers the owner, if any, to be destroyed with `device` current.
  [[nodiscard]] ref<retired_object> hand_on(int device) noexcept;

 private:
  struct put_back {
    void operator()(retired_object* unused) const noexcept;
  };
  using pointer = std::unique_ptr<retired_object, put_back>;

  [[nodiscard]] static pointer take(deleter_core& core);

  pointer owner_;
};

inline node_payload::pointer node_payload::take(deleter_core& core) {
  if (!core.is_open()) {
    throw usage_error("node", "the deleter that destroys what nodes keep was stopped",
                      "add nodes before stop(), or make the graph with another deleter");
  }
  return pointer(&core.take_retired_object(0, false));
}

inline ref<retired_object> node_payload::hand_on(int device) noexcept {
  if (owner_ == nullptr) return {};
  owner_->set_device(device);
  owner_->enter_graph();
  return ref<retired_object>(*owner_.release());
}

inline void node_payload::put_back::operator()(retired_object* unused) const noexcept {
  unused->drop_companions();
  unused->clear();
  unused->core().put_retired_object(*unused);
}

}  // namespace escrow::inline v0_1::detail
