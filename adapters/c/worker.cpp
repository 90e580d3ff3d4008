// SPDX-License-Identifier: Apache-2.0
// The C API of the process's deleter.
#include <utility>

#include "calls.hpp"
#include "escrow/deleter/deleter.hpp"

using namespace escrow;

namespace {

// Calls `destroy` at its end, which is the worker's, unless it was moved from.
class retired {
 public:
  retired(escrow_destroy destroy, void* object) noexcept : destroy_(destroy), object_(object) {}
  retired(retired&& other) noexcept
      : destroy_(std::exchange(other.destroy_, nullptr)), object_(other.object_) {}
  retired& operator=(retired&&) = delete;
  ~retired() {
    if (destroy_ != nullptr) destroy_(object_);
  }

  // The object stays the caller's. False: this does not have it any more.
  [[nodiscard]] bool give_back() noexcept { return std::exchange(destroy_, nullptr) != nullptr; }

 private:
  escrow_destroy destroy_;
  void* object_;
};

template <class HandOver>
escrow_status retire(char const* function, escrow_destroy destroy, void* object,
                     HandOver const& hand_over) noexcept {
  retired owner(destroy, object);
  escrow_status const status = run(function, [&](c_call by) {
    static_cast<void>(by.need(destroy, "destroy"));
    hand_over(by, std::move(owner));
  });
  if (status != ESCROW_OK && !owner.give_back() && destroy != nullptr) note_taken();
  return status;
}

}  // namespace

escrow_status escrow_on_error(escrow_error_handler handler, void* user) {
  return run(__func__, [&](c_call) {
    if (handler == nullptr) return deleter::global().set_on_error({});
    deleter::global().set_on_error([handler, user](std::exception const& error) {
      c_failure const failure = failure_of(error);
      handler(user, failure.status, failure.cuda_error, error.what());
    });
  });
}

escrow_status escrow_drain(uint64_t timeout_ns, bool* is_drained) {
  return run_without_gil(__func__, [&](c_call by) {
    bool& result = by.need(is_drained, "is_drained");
    result = deleter::global().drain_for(time_of(timeout_ns));
  });
}

escrow_status escrow_worker_statistics(escrow_worker_stats* stats) {
  return run(__func__, [&](c_call by) {
    deleter_stats const now = deleter::global().stats();
    by.copy_stats({.size = 0,
                   .reclaimed = now.reclaimed,
                   .pending = now.pending,
                   .in_graphs = now.in_graphs,
                   .leaked = now.leaked,
                   .errors = now.errors},
                  stats);
  });
}

escrow_status escrow_retire(cudaStream_t stream, escrow_destroy destroy, void* object) {
  return retire(__func__, destroy, object, [&](c_call, retired&& owner) {
    deleter::global().retire(stream, std::move(owner));
  });
}

escrow_status escrow_retire_now(escrow_destroy destroy, void* object) {
  return retire(__func__, destroy, object,
                [&](c_call, retired&& owner) { deleter::global().retire(std::move(owner)); });
}

escrow_status escrow_retire_with_graph(cudaGraph_t graph, escrow_destroy destroy, void* object) {
  return retire(__func__, destroy, object, [&](c_call by, retired&& owner) {
    static_cast<void>(by.need(graph, "graph"));
    deleter::global().retire(graph, std::move(owner));
  });
}
