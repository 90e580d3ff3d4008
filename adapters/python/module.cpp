// SPDX-License-Identifier: Apache-2.0
// The Python module escrow._escrow: what its parts share, and errors.
#include "module.hpp"

#include <array>
#include <cmath>
#include <new>
#include <string_view>

#include "escrow/core/error.hpp"
#include "escrow/pool/resource_pool.hpp"
#include "escrow/version.hpp"
#include "without_place.hpp"

namespace escrow::python {

namespace {

// Made once, and never dropped: an error may be raised while the interpreter ends.
struct error_types {
  PyObject* base = nullptr;
  PyObject* usage = nullptr;
  PyObject* cuda = nullptr;
  PyObject* out_of_memory = nullptr;
  PyObject* exhausted = nullptr;
  PyObject* busy = nullptr;
};
error_types errors;

PyObject* new_error(nb::module_& to, char const* name, nb::object const& bases, char const* text) {
  std::string const full = std::string("escrow.") + name;
  PyObject* const made = PyErr_NewExceptionWithDoc(full.c_str(), text, bases.ptr(), nullptr);
  if (made == nullptr) throw nb::python_error();
  to.attr(name) = nb::borrow(made);
  return made;
}

[[nodiscard]] PyObject* type_of(std::exception const& error) {
  if (auto const* const failed = dynamic_cast<cuda_error const*>(&error)) {
    return failed->status() == cudaErrorMemoryAllocation ? errors.out_of_memory : errors.cuda;
  }
  if (dynamic_cast<usage_error const*>(&error) != nullptr) return errors.usage;
  if (dynamic_cast<pool_exhausted const*>(&error) != nullptr) return errors.exhausted;
  if (dynamic_cast<group_busy const*>(&error) != nullptr) return errors.busy;
  if (dynamic_cast<std::bad_alloc const*>(&error) != nullptr) return PyExc_MemoryError;
  return errors.base;
}

// The int that an object of another library's is, or nothing.
[[nodiscard]] std::optional<std::uintptr_t> number_of(nb::handle given) {
  // Other libraries' handles are no more than convertible; a float or a bool is a mistake.
  if (PyFloat_Check(given.ptr()) || PyBool_Check(given.ptr())) return std::nullopt;
  if (!PyLong_Check(given.ptr()) && !PyIndex_Check(given.ptr()) && !nb::hasattr(given, "__int__")) {
    return std::nullopt;
  }
  nb::object const number = nb::steal(PyNumber_Long(given.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  unsigned long long const value = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return static_cast<std::uintptr_t>(value);
}

[[noreturn]] void refuse_type(char const* what, char const* advice, nb::handle given) {
  auto const type = nb::cast<std::string>(given.type().attr("__name__"));
  std::string const text = std::string(what) + " is a " + type + "; " + advice;
  throw nb::type_error(text.c_str());
}

}  // namespace

cudaStream_t stream_of(nb::handle given) {
  // NOLINTBEGIN(performance-no-int-to-ptr): Python has handles as numbers
  if (PyLong_CheckExact(given.ptr())) return reinterpret_cast<cudaStream_t>(*number_of(given));
  if (nb::hasattr(given, "__cuda_stream__")) {
    nb::object told = given.attr("__cuda_stream__");
    if (PyCallable_Check(told.ptr()) != 0) told = told();
    if (nb::isinstance<nb::sequence>(told) && nb::len(told) == 2) {
      if (auto const number = number_of(nb::object(told[1])))
        return reinterpret_cast<cudaStream_t>(*number);
    }
    refuse_type("what `stream` tells by __cuda_stream__",
                "it has to be the pair (0, handle), the handle an int", told);
  }
  for (char const* const name : {"cuda_stream", "ptr"}) {
    if (!nb::hasattr(given, name)) continue;
    if (auto const number = number_of(nb::object(given.attr(name))))
      return reinterpret_cast<cudaStream_t>(*number);
  }
  if (auto const number = number_of(given)) return reinterpret_cast<cudaStream_t>(*number);
  refuse_type("`stream`", "pass the handle as an int, or an object with __cuda_stream__", given);
}

cudaGraph_t graph_of(nb::handle given) {
  std::optional<std::uintptr_t> number = number_of(given);
  if (!number && nb::hasattr(given, "handle")) number = number_of(nb::object(given.attr("handle")));
  if (!number) refuse_type("`graph`", "pass the handle as an int, or an object with it", given);
  return reinterpret_cast<cudaGraph_t>(*number);
  // NOLINTEND(performance-no-int-to-ptr)
}

void raise(char const* call, std::exception const& error) {
  std::string text = without_place(error);
  if (!std::string_view(text).starts_with(call)) text = std::string(call) + ": " + text;
  nb::object const type = nb::borrow(type_of(error));
  nb::object const made = type(text);
  if (auto const* const failed = dynamic_cast<cuda_error const*>(&error)) {
    made.attr("status") = static_cast<int>(failed->status());
    made.attr("name") = cudaGetErrorName(failed->status());
  }
  PyErr_SetObject(type.ptr(), made.ptr());
  throw nb::python_error();
}

std::chrono::nanoseconds time_of(std::optional<double> seconds, std::chrono::nanoseconds if_none) {
  constexpr double most = 3600.0 * 24 * 365 * 100;
  if (!seconds) return if_none;
  if (std::isnan(*seconds)) throw nb::value_error("a time in seconds is not a number");
  double const cut = *seconds < most ? *seconds : most;
  return std::chrono::nanoseconds(static_cast<std::int64_t>((cut > 0 ? cut : 0) * 1e9));
}

nb::object dict_of(std::string const& json) {
  return nb::module_::import_("json").attr("loads")(json);
}

void add_errors(nb::module_& to) {
  auto const base = nb::borrow(PyExc_RuntimeError);
  errors.base = new_error(to, "EscrowError", base, "Any error of Escrow.");
  auto const ours = nb::borrow(errors.base);
  errors.usage = new_error(to, "UsageError", ours,
                           "Incorrect use. The text names the call, the argument and the remedy.");
  errors.cuda = new_error(to, "CudaError", ours,
                          "A call of the CUDA runtime failed: `status` is its number, `name` its "
                          "name, as \"cudaErrorInvalidValue\".");
  auto const memory = nb::borrow(PyExc_MemoryError);
  errors.out_of_memory =
      new_error(to, "OutOfMemory", nb::make_tuple(nb::borrow(errors.cuda), memory),
                "There is no device memory, also after what is idle was freed.");
  errors.exhausted = new_error(to, "PoolExhausted", nb::make_tuple(ours, memory),
                               "A pool's limit is reached. The text names what holds the rest.");
  errors.busy = new_error(to, "GroupBusy", nb::make_tuple(ours, nb::borrow(PyExc_TimeoutError)),
                          "Another thread's launch of the group did not end in time.");
}

}  // namespace escrow::python

NB_MODULE(_escrow, to) {
  nanobind::set_leak_warnings(false);  // what a graph keeps may outlive the interpreter
  to.attr("__version__") = std::to_string(ESCROW_VERSION_MAJOR) + "." +
                           std::to_string(ESCROW_VERSION_MINOR) + "." +
                           std::to_string(ESCROW_VERSION_PATCH);
  to.attr("cuda_major") = CUDART_VERSION / 1000;
  escrow::python::add_errors(to);
  escrow::python::add_memory(to);
  escrow::python::add_graphs(to);
  escrow::python::add_keep(to);
  escrow::python::add_torch_calls(to);
}
