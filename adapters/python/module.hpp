// SPDX-License-Identifier: Apache-2.0
// What the files of the Python module share: streams, errors, the GIL, and options of pools.
#pragma once

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "escrow/deleter/sharing_group.hpp"
#include "escrow/pool/scratch_pool.hpp"

namespace escrow::python {

namespace nb = nanobind;
using nb::literals::operator""_a;

// The handle of a stream: an int, or an object with __cuda_stream__ (the protocol of cuda.core), or
// with the attribute `cuda_stream` (PyTorch) or `ptr` (CuPy). Raises TypeError for anything else.
[[nodiscard]] cudaStream_t stream_of(nb::handle given);
// The handle of a graph: an int, or what converts to one, or an object whose `handle` does.
[[nodiscard]] cudaGraph_t graph_of(nb::handle given);

// In a handler of `error`: raises it as the error of the Python function `call`.
[[noreturn]] void raise(char const* call, std::exception const& error);

// Runs `function` and raises what it throws. Errors that Python raised pass.
template <class Function>
decltype(auto) quickly(char const* call, Function const& function) {
  try {
    return function();
  } catch (nb::python_error const&) {
    throw;
  } catch (nb::builtin_exception const&) {
    throw;
  } catch (std::exception const& error) {
    raise(call, error);
  }
}

// The calling thread's GIL, let go for a scope, as nb::gil_scoped_release. Once the interpreter
// ends, CPython before 3.14 ends a thread that wants the GIL back, by unwinding it, which
// destructors do not allow: this thread stays here instead, as with 3.14.
class [[nodiscard]] gil_let_go {
 public:
  gil_let_go() noexcept : thread_(PyEval_SaveThread()) {}
  gil_let_go(gil_let_go&&) = delete;
  ~gil_let_go() { take(thread_); }

  // The GIL once more, for a call of Python in the scope.
  class [[nodiscard]] taken {
   public:
    explicit taken(gil_let_go& of) noexcept : of_(of) { take(of_.thread_); }
    taken(taken&&) = delete;
    ~taken() { of_.thread_ = PyEval_SaveThread(); }

   private:
    gil_let_go& of_;
  };

 private:
  static void take(PyThreadState* thread) noexcept {
    try {
      PyEval_RestoreThread(thread);
    } catch (abi::__forced_unwind const&) {
      while (true) pause();
    }
  }

  PyThreadState* thread_;
};

// The same without the GIL: for what may wait for the GPU, for the worker or for a graph's lock.
template <class Function>
decltype(auto) waiting(char const* call, Function const& function) {
  return quickly(call, [&]() -> decltype(auto) {
    gil_let_go others_run;
    if constexpr (std::is_invocable_v<Function const&, gil_let_go&>) {
      return function(others_run);
    } else {
      return function();
    }
  });
}

// Holds a T, whose end may run destructors or wait for a graph's lock: without the GIL.
template <class T>
class ends_without_gil {
 public:
  ends_without_gil() = default;
  explicit ends_without_gil(T&& held) : held_(std::move(held)) {}
  ends_without_gil(ends_without_gil&&) noexcept = default;
  ~ends_without_gil() { reset(); }

  void reset() {
    if (!held_) return;
    gil_let_go const others_run;
    held_.reset();
  }
  // Raises UsageError once it was closed.
  [[nodiscard]] T& need(char const* call) {
    if (held_) return *held_;
    throw usage_error(call, "it was closed", "make another one");
  }

 private:
  std::optional<T> held_;
};

// Seconds, as Python has them, cut to 100 years; nothing and less than zero: `if_none`.
[[nodiscard]] std::chrono::nanoseconds time_of(std::optional<double> seconds,
                                               std::chrono::nanoseconds if_none);

// What pools and allocators are made with.
struct memory_options {
  pool_options pool;
  scratch_policy policy;
};

struct python_group {
  sharing_group held;
  std::string label;
};

// Defines __init__ with all options of memory, which `make(memory_options)` gets without the GIL.
template <class Class, class Make>
void define_init(Class& defined, char const* call, Make make, char const* text) {
  using type = typename Class::Type;
  defined.def(
      "__init__",
      [call, make](type* place, int device, std::string const& label, python_group const* group,
                   std::optional<std::size_t> bytes_max, std::optional<std::size_t> slots_max,
                   std::optional<double> idle_max, std::optional<double> host_wait_max,
                   std::optional<double> capture_wait_max, bool track_leases, bool pinned_host,
                   bool held_until_closed, bool streams_outlive_pool) {
        memory_options options;
        options.pool.device = device;
        options.pool.label = label;
        if (group != nullptr) options.pool.group = group->held;
        options.pool.slots_max = slots_max;
        options.pool.host_wait_max = time_of(host_wait_max, options.pool.host_wait_max);
        options.pool.capture_wait_max = time_of(capture_wait_max, options.pool.capture_wait_max);
        options.pool.track_leases = track_leases;
        options.pool.held_until_closed = held_until_closed;
        options.pool.streams_outlive_pool = streams_outlive_pool;
        if (bytes_max) options.policy.bytes_max = *bytes_max;
        options.policy.idle_max = time_of(idle_max, options.policy.idle_max);
        if (pinned_host) options.policy.source = memory_source::pinned_host();
        waiting(call, [&] { make(place, options); });
      },
      nb::kw_only(), "device"_a = -1, "label"_a = "python", "group"_a = nb::none(),
      "bytes_max"_a = nb::none(), "slots_max"_a = nb::none(), "idle_max"_a = nb::none(),
      "host_wait_max"_a = nb::none(), "capture_wait_max"_a = nb::none(), "track_leases"_a = false,
      "pinned_host"_a = false, "held_until_closed"_a = false, "streams_outlive_pool"_a = false,
      text);
}

// A dict of a JSON object.
[[nodiscard]] nb::object dict_of(std::string const& json);

// Each of these files adds its part to the module.
void add_errors(nb::module_& to);
void add_memory(nb::module_& to);
void add_allocators(nb::module_& to);
void add_graphs(nb::module_& to);
void add_keep(nb::module_& to);
void add_torch_calls(nb::module_& to);

}  // namespace escrow::python
