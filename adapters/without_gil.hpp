// SPDX-License-Identifier: Apache-2.0
// Python's lock, which a call lets go that may wait for others: an adapter is called by Python,
// too.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: lets the calling thread's GIL go for a scope, if it has that. For calls that wait for
//   graph_lifetime_lock, for the worker, or that run destructors: a destroy callback of a
//   stranger's user object (cuda.core's drops a Python object) runs under that lock and waits for
//   the GIL. By ctypes.CDLL a function is called without the GIL; by ctypes.PyDLL, an extension
//   module or a tensor's destructor with it.
// Python is found in the process, where it is: adapters are compiled and run without. A call that
//   costs less than to look for it takes what an earlier one found: `if_known`.
// Thread safety: begins and ends on one thread. The caller takes the GIL back at the end.
class [[nodiscard]] without_gil {
 public:
  enum class python { is_looked_for, if_known };

  explicit without_gil(python which = python::is_looked_for) noexcept
      : python_(which == python::if_known ? found().load(std::memory_order_acquire) : look()) {
    if (python_ == nullptr) return;
    if (python_->is_initialized() != 0 && python_->has_gil() != 0) thread_ = python_->let_go();
  }
  without_gil(without_gil&&) = delete;
  ~without_gil() {
    if (thread_ != nullptr) take_back(*python_, thread_);
  }

  // The GIL as it was before, for a scope within this one: for a function of the caller's.
  class [[nodiscard]] as_before {
   public:
    explicit as_before(without_gil& of) noexcept : of_(of) {
      if (of_.thread_ != nullptr) take_back(*of_.python_, of_.thread_);
    }
    as_before(as_before&&) = delete;
    ~as_before() {
      if (of_.thread_ != nullptr) of_.thread_ = of_.python_->let_go();
    }

   private:
    without_gil& of_;
  };

 private:
  struct functions {
    int (*is_initialized)();
    int (*has_gil)();
    void* (*let_go)();
    void (*take_back)(void*);
  };

  // Once the interpreter ends, CPython before 3.14 ends the thread of somebody who wants the lock,
  // by unwinding it, which destructors do not allow: the thread stays here, as with 3.14.
  static void take_back(functions const& python, void* thread) noexcept {
    try {
      python.take_back(thread);
    } catch (abi::__forced_unwind const&) {
      while (true) pause();
    }
  }

  // Null until it is found. Release and acquire: who reads it has what it points to.
  static std::atomic<functions const*>& found() noexcept {
    static constinit std::atomic<functions const*> its{nullptr};
    return its;
  }
  static functions const* look() noexcept {
    if (functions const* const known = found().load(std::memory_order_acquire)) return known;
    functions const here{function<int (*)()>("Py_IsInitialized"),
                         function<int (*)()>("PyGILState_Check"),
                         function<void* (*)()>("PyEval_SaveThread"),
                         function<void (*)(void*)>("PyEval_RestoreThread")};
    if (here.is_initialized == nullptr || here.has_gil == nullptr || here.let_go == nullptr ||
        here.take_back == nullptr) {
      return nullptr;
    }
    static functions const kept = here;
    found().store(&kept, std::memory_order_release);
    return &kept;
  }
  template <class Function>
  static Function function(char const* name) noexcept {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }

  functions const* python_;
  void* thread_ = nullptr;  // null: it had no GIL
};

}  // namespace escrow::inline v0_2
