// SPDX-License-Identifier: Apache-2.0
// Captured work that uses variables of a function that has returned.
#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "audited_call.hpp"
#include "escrow/core/error.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/graph_query.hpp"

namespace escrow::inline v0_2 {

namespace {

// The part of this thread's stack that functions which have returned had, or such that are called
// now. Empty if another stack is in use, as a fiber's.
class dead_stack {
 public:
  explicit dead_stack(void const* end) noexcept : end_(reinterpret_cast<std::uintptr_t>(end)) {
    pthread_attr_t its{};
    if (pthread_getattr_np(pthread_self(), &its) != 0) return;
    void* lowest = nullptr;
    std::size_t bytes = 0;
    bool const is_known = pthread_attr_getstack(&its, &lowest, &bytes) == 0;
    pthread_attr_destroy(&its);
    auto const begin = reinterpret_cast<std::uintptr_t>(lowest);
    if (is_known && end_ > begin && end_ - begin <= bytes) begin_ = begin;
  }

  [[nodiscard]] bool has(void const* address) const noexcept {
    auto const number = reinterpret_cast<std::uintptr_t>(address);
    return begin_ != 0 && number >= begin_ && number < end_;
  }

 private:
  std::uintptr_t begin_ = 0;
  std::uintptr_t const end_;
};

[[noreturn]] void refuse(char const* call, char const* what, void const* address) {
  std::array<char, 32> text{};
  static_cast<void>(std::snprintf(text.data(), text.size(), "%p", address));
  throw usage_error(call,
                    std::string(what) + " " + text.data() +
                        ", a variable of a function that has returned: each launch would use it",
                    "use memory that lives as long as the graph, e.g. pinned memory that is "
                    "claimed in the capture, or what retain() keeps");
}

}  // namespace

void refuse_dead_stack(char const* call, cudaGraph_t captured, audit_use use, void const* frame) {
  if (!is_audited(audited_call::capture, use)) return;
  dead_stack const dead(frame);
  for (cudaGraphNode_t const node : nodes_of(captured)) {
    cudaGraphNodeType const type = type_of(node);
    if (type == cudaGraphNodeTypeMemcpy) {
      cudaMemcpy3DParms its{};
      check(cudaGraphMemcpyNodeGetParams(node, &its), "cudaGraphMemcpyNodeGetParams");
      if (dead.has(its.srcPtr.ptr)) refuse(call, "a copy was captured from", its.srcPtr.ptr);
      if (dead.has(its.dstPtr.ptr)) refuse(call, "a copy was captured to", its.dstPtr.ptr);
    } else if (type == cudaGraphNodeTypeHost) {
      cudaHostNodeParams its{};
      check(cudaGraphHostNodeGetParams(node, &its), "cudaGraphHostNodeGetParams");
      if (dead.has(its.userData))
        refuse(call, "a host function was captured with the argument", its.userData);
    }
  }
}

}  // namespace escrow::inline v0_2
