// SPDX-License-Identifier: Apache-2.0
// Whom errors are told to that no caller can be told: a handler, or standard error; and leaks.
#include "escrow/internal/deleter_accounts.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/release_queue.hpp"
#include "escrow/internal/wakeup.hpp"

namespace escrow::inline v0_2 {

namespace {

// A handler uses what the program has, which the end of the process destroys. So the gate closes
// before that, and waits a bounded time for handlers that run.
constinit shutdown_gate handlers;
thread_local bool is_in_handler = false;

void end_handlers() {
  handlers.close();
  if (!is_in_handler) handlers.wait_until_empty();  // else it ends the process
}

// The main thread's variables are destroyed before any static one, whichever was made last.
struct end_of_thread {
  ~end_of_thread() {
    if (is_main) end_handlers();
  }
  bool is_main = false;
};
thread_local end_of_thread this_thread;

// For what the handler uses so far: exit handlers run in reverse order. A process that another
// thread ends, or whose main thread made no handler, has only these.
void end_handlers_before_what_is_there() noexcept {
  if (gettid() == getpid()) this_thread.is_main = true;
  static_cast<void>(std::atexit(&end_handlers));  // without memory for it: the others remain
}

// CUDA says so to every call once its own exit handler has run.
bool is_of_the_end(std::exception const& error) noexcept {
  auto const* const failed = dynamic_cast<cuda_error const*>(&error);
  return failed != nullptr && failed->status() == cudaErrorCudartUnloading;
}

// To standard error: the first ones of the process.
void print(std::exception const& error) noexcept {
  constexpr int shown_max = 10;
  static constinit std::atomic<int> shown{0};  // relaxed: each number once
  if (shown.load(std::memory_order_relaxed) > shown_max) return;
  int const before = shown.fetch_add(1, std::memory_order_relaxed);
  if (before < shown_max) {
    static_cast<void>(std::fprintf(stderr, "escrow: %s\n", error.what()));
  } else if (before == shown_max) {
    static_cast<void>(std::fputs(
        "escrow: more errors follow, which are not shown: see deleter::set_on_error\n", stderr));
  }
}

}  // namespace

struct deleter_accounts::error_handler {
  std::function<void(std::exception const&)> function;
  std::atomic<bool> was_called{false};  // relaxed: one call is the first
};

deleter_accounts::~deleter_accounts() = default;

void deleter_accounts::set_on_error(std::function<void(std::exception const&)> handler) {
  std::shared_ptr<error_handler> next;
  if (handler) {
    next = std::make_shared<error_handler>();
    next->function = std::move(handler);
    end_handlers_before_what_is_there();
  }
  std::lock_guard const lock(on_error_mutex_);
  on_error_.swap(next);  // the previous one is destroyed after unlocking
}

void deleter_accounts::report(std::exception const& error) noexcept {
  errors_.fetch_add(1, std::memory_order_relaxed);
  if (is_process_exiting() || is_of_the_end(error)) return;
  std::shared_ptr<error_handler> handler;
  {
    std::lock_guard const lock(on_error_mutex_);
    handler = on_error_;
  }
  if (handler == nullptr || !handlers.try_enter()) return print(error);
  bool const was_in_handler = std::exchange(is_in_handler, true);
  try {
    handler->function(error);
  } catch (...) {  // which a handler must not do
    print(error);
  }
  is_in_handler = was_in_handler;
  handlers.leave();
  // It may have made what it uses.
  if (!handler->was_called.exchange(true, std::memory_order_relaxed)) {
    end_handlers_before_what_is_there();
  }
}

void deleter_accounts::report(cudaError_t status, char const* api) noexcept {
  try {
    bool const is_gone = status == cudaErrorInvalidResourceHandle;
    report(cuda_error(status, api, source_location(),
                      is_gone
                          ? "a stream or an event that work of a pool or an owner waits for was "
                            "destroyed too early, also by cudaDeviceReset or sim::reset(): what "
                            "waits for it is leaked"
                          : ""));
  } catch (std::bad_alloc const&) {
    errors_.fetch_add(1, std::memory_order_relaxed);  // no memory for the text
  }
}

void deleter_accounts::leak(reclaimable& unknown) noexcept {
  // In a list, so that leak checkers find it reachable.
  static constinit std::mutex mutex;  // guards `leaked`
  static constinit release_list leaked;
  {
    std::lock_guard const lock(mutex);
    leaked.push_back(unknown);
  }
  unknown.accounts().count_leaked();
}

}  // namespace escrow::inline v0_2
