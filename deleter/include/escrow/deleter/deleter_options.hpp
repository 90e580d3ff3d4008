// How a deleter is set up.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>

namespace escrow {

// What: the options of a deleter; every one has a good default.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: copied by the deleter.
// Capture: none.
// Errors: none.
struct deleter_options {
  // Start a worker thread. Without one, somebody has to call deleter::poll().
  bool own_worker = true;
  // The worker's name, as a debugger shows it: 15 characters at most, more are cut off.
  std::string thread_name = "escrow";
  // How long the worker sleeps while events are pending and none is done: starts with the first,
  // doubles up to the second. A thread that polls every 50 us was measured not to slow others down.
  std::chrono::microseconds poll_interval_min{50};
  std::chrono::microseconds poll_interval_max{400};
  // How long the worker goes on looking every poll_interval_min after its last work before it
  // sleeps until it is woken. Meanwhile a push needs no wake-up.
  std::chrono::microseconds linger{1000};
  // Told of each error, on the worker or on the thread that polls or releases; several threads may
  // call it at a time. It must not throw; what it throws is dropped.
  std::function<void(std::exception const&)> on_error = {};
};

}  // namespace escrow
