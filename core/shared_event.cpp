// SPDX-License-Identifier: Apache-2.0
// Events with several owners, found by their handles.
#include <memory>
#include <mutex>
#include <unordered_map>

#include "escrow/core/error.hpp"
#include "escrow/core/event.hpp"
#include "escrow/internal/never_destroyed.hpp"

namespace escrow::inline v0_2 {

namespace {

struct known_event {
  std::weak_ptr<event const> its;
  unsigned flags;
};

struct known_events {
  std::mutex mutex;  // guards `all`; never held across a CUDA call
  std::unordered_map<cudaEvent_t, known_event> all;
};

known_events& known() noexcept {
  static never_destroyed<known_events> only;  // an owner may end during process exit
  return *only;
}

// Before CUDA can give the handle to another event.
struct forget_and_destroy {
  void operator()(event const* ended) const noexcept {
    {
      std::lock_guard const lock(known().mutex);
      known().all.erase(ended->get());
    }
    delete ended;
  }
};

}  // namespace

std::shared_ptr<event const> event::shared(unsigned flags, source_location where) {
  std::unique_ptr<event const, forget_and_destroy> made(new event(flags, where));
  std::shared_ptr<event const> its(std::move(made));
  std::lock_guard const lock(known().mutex);
  known().all.emplace(its->get(), known_event{its, flags});
  return its;
}

std::optional<unsigned> event::flags() const noexcept {
  std::lock_guard const lock(known().mutex);
  auto const found = known().all.find(get());
  if (found == known().all.end()) return std::nullopt;
  return found->second.flags;
}

std::shared_ptr<event const> event::from(cudaEvent_t handle, source_location where) {
  constexpr char const* call = "event::from";
  return detail::called_at(call, where, [&] {
    std::shared_ptr<event const> its;
    {
      std::lock_guard const lock(known().mutex);
      auto const found = known().all.find(handle);
      if (found != known().all.end()) its = found->second.its.lock();
    }
    if (its != nullptr) return its;
    throw usage_error(call, "no event::shared() of that handle has an owner",
                      "pass the handle of one, as a node that has it tells");
  });
}

}  // namespace escrow::inline v0_2
