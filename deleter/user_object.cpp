// User objects: the callback only lets go, and no step leaks.
#include "escrow/deleter/user_object.hpp"

#include "escrow/core/error.hpp"
#include "escrow/deleter/graph_registry.hpp"
#include "escrow/deleter/release_hub.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

namespace {

// Runs on the thread that dropped the last reference, CUDA's own among them: no CUDA call, no
// allocation, no lock, no wait.
template <class Held>
void CUDART_CB let_go(void* held) noexcept {
  static_cast<Held*>(held)->let_go();
}

template <class Held>
cudaUserObject_t make_object(Held& held) {
  cudaUserObject_t made = nullptr;
  check(cudaUserObjectCreate(&made, &held, &let_go<Held>, 1, cudaUserObjectNoDestructorSync),
        "cudaUserObjectCreate");
  held.hold();
  return made;
}

}  // namespace

user_object::user_object(graph_reference& held) : reference_(&held), object_(make_object(held)) {}

user_object::user_object(graph_bundle& held) : bundle_(&held), object_(make_object(held)) {}

user_object::~user_object() {
  if (object_ == nullptr) return;
  release_object(object_, reference_ != nullptr ? reference_->hub() : bundle_->hub());
}

cudaUserObject_t user_object::move_to(cudaGraph_t graph, std::uint64_t id) {
  // Noted first: once it is moved, nothing may fail, and the graph may go at any time.
  note(graph, id);
  cudaError_t const status = cudaGraphRetainUserObject(graph, object_, 1, cudaGraphUserObjectMove);
  if (status != cudaSuccess) withdraw(id);
  check(status, "cudaGraphRetainUserObject");
  return std::exchange(object_, nullptr);
}

void user_object::note(cudaGraph_t graph, std::uint64_t id) {
  graph_registry& registry = graph_registry::global();
  if (reference_ != nullptr) return registry.add({reference_, object_}, id, graph);
  registry.add({bundle_, object_}, id, graph);
}

void user_object::withdraw(std::uint64_t id) noexcept {
  graph_registry& registry = graph_registry::global();
  if (reference_ != nullptr) return registry.withdraw(*reference_);
  registry.withdraw(*bundle_, id);
}

void release_object(cudaUserObject_t object, release_hub& hub) noexcept {
  cudaError_t status = cudaSuccess;
  bool const is_released = retry_cleanup([&] {
    status = cudaUserObjectRelease(object, 1);
    return status;
  });
  if (is_released || is_sticky(status)) return;  // with a fault, nobody knows
  hub.count_held();
  hub.report(status, "cudaUserObjectRelease");
}

}  // namespace escrow
