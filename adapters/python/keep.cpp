// SPDX-License-Identifier: Apache-2.0
// Python objects that graphs and streams keep: references that are dropped with the GIL, on a
// thread of their own, and never once the interpreter ends.
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "escrow/deleter/deleter.hpp"
#include "escrow/internal/never_destroyed.hpp"
#include "module.hpp"

namespace escrow::python {

namespace {

// A reference that is to be dropped, made before it is needed: a drop cannot fail.
struct dropped {
  PyObject* object;
  dropped* next = nullptr;
};

// What: drops references. Escrow's worker hands them over and does not wait for the GIL, since a
//   thread that has the GIL may wait for memory that the worker gives back.
// Thread safety: any thread.
class reference_dropper {
 public:
  // Starts the thread, once. Throws std::system_error.
  void start() {
    std::lock_guard const lock(mutex_);
    if (is_started_) return;
    std::thread([this] { run(); }).detach();
    is_started_ = true;
  }

  void push(dropped& reference) noexcept {
    {
      std::lock_guard const lock(mutex_);
      *last_ = &reference;
      last_ = &reference.next;
      ++pushed_;
    }
    some_.notify_one();
  }

  // Waits, without the GIL, until all that was pushed is dropped. False after the timeout.
  [[nodiscard]] bool drain_until(std::chrono::steady_clock::time_point end) {
    std::unique_lock lock(mutex_);
    std::uint64_t const wanted = pushed_;
    return none_.wait_until(lock, end, [&] { return ended_ >= wanted || is_over_; });
  }

  // With the GIL, before the interpreter ends: drops what is there, and leaks what comes later.
  void end() {
    // A forked child has no thread that drops, and may have the gate as that thread held it.
    if (getpid() != process_) return;
    {
      gil_let_go const others_run;
      std::lock_guard const gate(gate_);  // no drop runs
      std::lock_guard const lock(mutex_);
      is_over_ = true;
    }
    none_.notify_all();
    drop(take());
  }

  [[nodiscard]] bool is_this_thread() const noexcept { return is_dropping; }

 private:
  [[nodiscard]] dropped* take() noexcept {
    std::lock_guard const lock(mutex_);
    last_ = &first_;
    return std::exchange(first_, nullptr);
  }

  // With the GIL.
  static std::uint64_t drop(dropped* list) noexcept {
    std::uint64_t count = 0;
    while (list != nullptr) {
      std::unique_ptr<dropped> const each(std::exchange(list, list->next));
      Py_DECREF(each->object);
      ++count;
    }
    return count;
  }

  void run() {
    is_dropping = true;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        some_.wait(lock, [this] { return first_ != nullptr && !is_over_; });
      }
      // The interpreter does not end meanwhile: end() waits for the gate, without the GIL.
      std::lock_guard const gate(gate_);
      if (is_over()) continue;
      PyGILState_STATE const gil = PyGILState_Ensure();
      std::uint64_t const count = drop(take());
      PyGILState_Release(gil);
      {
        std::lock_guard const lock(mutex_);
        ended_ += count;
      }
      none_.notify_all();
    }
  }

  [[nodiscard]] bool is_over() noexcept {
    std::lock_guard const lock(mutex_);
    return is_over_;
  }

  static thread_local bool is_dropping;

  pid_t const process_ = getpid();
  std::mutex gate_;   // held while references are dropped; taken before mutex_
  std::mutex mutex_;  // guards the rest
  std::condition_variable some_;
  std::condition_variable none_;
  dropped* first_ = nullptr;
  dropped** last_ = &first_;
  std::uint64_t pushed_ = 0;
  std::uint64_t ended_ = 0;
  bool is_started_ = false;
  bool is_over_ = false;
};
thread_local bool reference_dropper::is_dropping = false;

reference_dropper& dropper() {
  static never_destroyed<reference_dropper> its;
  return *its;
}

// Owns a reference, without the GIL.
class reference {
 public:
  explicit reference(nb::object object)
      : its_(std::make_unique<dropped>(dropped{object.ptr()}).release()) {
    static_cast<void>(object.release());
  }
  reference(reference&& other) noexcept : its_(std::exchange(other.its_, nullptr)) {}
  reference& operator=(reference&&) = delete;
  ~reference() {
    if (its_ != nullptr) dropper().push(*its_);
  }

 private:
  dropped* its_;
};

template <class HandOver>
void hand_over(char const* call, nb::object object, HandOver const& how) {
  dropper().start();
  reference kept(std::move(object));
  waiting(call, [&] { how(std::move(kept)); });
}

bool drain(std::optional<double> timeout) {
  constexpr char const* call = "drain";
  return waiting(call, [&] {
    if (dropper().is_this_thread()) {
      throw usage_error(call, "it is called while a kept object ends", "call it on another thread");
    }
    auto const most = time_of(timeout, std::chrono::hours(24 * 365));
    auto const end = std::chrono::steady_clock::now() + most;
    return deleter::global().drain_for(most) && dropper().drain_until(end);
  });
}

}  // namespace

void add_keep(nb::module_& to) {
  nb::module_::import_("atexit").attr("register")(
      nb::cpp_function([] { dropper().end(); }, nb::name("_end_of_references")));
  to.def(
      "keep",
      [](nb::object object, nb::handle stream) {
        cudaStream_t const on = stream_of(stream);
        hand_over("keep", object,
                  [&](reference&& kept) { deleter::global().retire(on, std::move(kept)); });
        return object;
      },
      "object"_a.none(), "stream"_a.none(),
      "Keeps any Python object for the graph that is being captured on `stream`: until the graph, "
      "its\nclones and its execs are destroyed and their last launch has ended. If the stream is "
      "not "
      "being\ncaptured, until the work on it so far has ended. Returns the object.\n\n"
      "The reference is dropped on a thread of Escrow's that takes the GIL, so the object's end "
      "runs there.\nOnce the interpreter ends, references are leaked.\n\n"
      "Cycles: an object that refers to its graph (or exec) lives for ever, and the graph with it: "
      "the\ngarbage collector does not see what a graph keeps. Let the object refer to it "
      "weakly.\n\n"
      "Errors: UsageError for an invalidated capture, and for the legacy stream while another one "
      "captures;\nCudaError.");
  to.def(
      "retire",
      [](nb::object object, nb::handle stream) {
        cudaStream_t const on = stream_of(stream);
        hand_over("retire", std::move(object),
                  [&](reference&& kept) { deleter::global().retire(on, std::move(kept)); });
      },
      "object"_a.none(), "stream"_a.none(),
      "Drops a reference to `object` once the GPU no longer needs it: keep(), for an object that "
      "the "
      "caller\nhas done with.");
  to.def("drain", &drain, "timeout"_a = nb::none(),
         "Waits until all that was kept, retired or freed before the call, and that no graph "
         "holds, has "
         "ended;\nfor at most `timeout` seconds. Returns whether it has. UsageError on the thread "
         "where a kept object ends.");
}

}  // namespace escrow::python
