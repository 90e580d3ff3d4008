// SPDX-License-Identifier: Apache-2.0
// What escrow_torch calls around each launch, without ctypes.
#include <cstdint>

#include "module.hpp"

namespace escrow::python {

namespace {

// The functions of libescrow_torch, which this module is not linked to.
struct torch_calls {
  int (*enter_turn)(void* held, cudaStream_t stream) noexcept;
  int (*leave_turn)(void* held) noexcept;
  char const* (*error)() noexcept;

  // As of ctypes: None is null.
  static void* held_of(nb::handle given) {
    if (given.is_none()) return nullptr;
    void* const address = PyLong_AsVoidPtr(given.ptr());
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return address;
  }
  void must(int status) const {
    if (status != -1) return;
    PyErr_SetString(PyExc_RuntimeError, error());
    throw nb::python_error();
  }
};

// A function, or a handle of CUDA.
template <class Function>
Function at_address(std::uintptr_t address) {
  return reinterpret_cast<Function>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

// The library lets the GIL go where it may wait.
void add_torch_calls(nb::module_& to) {
  nb::class_<torch_calls> calls(to, "_TorchCalls");
  calls.def("__init__", [](torch_calls* place, std::uintptr_t enter, std::uintptr_t leave,
                           std::uintptr_t error) {
    new (place) torch_calls{at_address<decltype(torch_calls::enter_turn)>(enter),
                            at_address<decltype(torch_calls::leave_turn)>(leave),
                            at_address<decltype(torch_calls::error)>(error)};
  });
  calls.def(
      "enter",
      [](torch_calls const& its, nb::handle held, std::uintptr_t stream) {
        its.must(its.enter_turn(torch_calls::held_of(held), at_address<cudaStream_t>(stream)));
      },
      "held"_a.none(), "stream"_a);
  calls.def(
      "leave",
      [](torch_calls const& its, nb::handle held) {
        its.must(its.leave_turn(torch_calls::held_of(held)));
      },
      "held"_a.none());
}

}  // namespace escrow::python
