// Python's lock, which a call lets go that may wait for others: an adapter is called by Python,
// too.
#pragma once

#include <dlfcn.h>

#include "escrow/version.hpp"

namespace escrow::inline v0_1 {

// What: lets the calling thread's GIL go for a scope, if it has that. For calls that wait for
//   graph_lifetime_lock, for the worker, or that run destructors: a destroy callback of a
//   stranger's user object (cuda.core's drops a Python object) runs under that lock and waits for
//   the GIL. By ctypes.CDLL a function is called without the GIL; by ctypes.PyDLL, an extension
//   module or a tensor's destructor with it.
// Python is found in the process, where it is: adapters are compiled and run without.
// Thread safety: begins and ends on one thread. The caller takes the GIL back at the end.
class [[nodiscard]] without_gil {
 public:
  without_gil() noexcept {
    auto const is_initialized = function<int (*)()>("Py_IsInitialized");
    auto const has_gil = function<int (*)()>("PyGILState_Check");
    let_go_ = function<void* (*)()>("PyEval_SaveThread");
    take_back_ = function<void (*)(void*)>("PyEval_RestoreThread");
    if (is_initialized == nullptr || has_gil == nullptr || let_go_ == nullptr ||
        take_back_ == nullptr) {
      return;
    }
    if (is_initialized() != 0 && has_gil() != 0) thread_ = let_go_();
  }
  without_gil(without_gil&&) = delete;
  ~without_gil() {
    if (thread_ != nullptr) take_back_(thread_);
  }

  // The GIL as it was before, for a scope within this one: for a function of the caller's.
  class [[nodiscard]] as_before {
   public:
    explicit as_before(without_gil& of) noexcept : of_(of) {
      if (of_.thread_ != nullptr) of_.take_back_(of_.thread_);
    }
    as_before(as_before&&) = delete;
    ~as_before() {
      if (of_.thread_ != nullptr) of_.thread_ = of_.let_go_();
    }

   private:
    without_gil& of_;
  };

 private:
  template <class Function>
  static Function function(char const* name) noexcept {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }

  void* thread_ = nullptr;  // null: it had no GIL
  void* (*let_go_)() = nullptr;
  void (*take_back_)(void*) = nullptr;
};

}  // namespace escrow::inline v0_1
