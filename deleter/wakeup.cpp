// The list of unused wakeups.
#include "wakeup.hpp"

#include <mutex>
#include <utility>

namespace escrow::inline v0_1 {

namespace {

constinit std::mutex unused_mutex;  // guards the list
constinit wakeup* unused = nullptr;

}  // namespace

wakeup_store::loan wakeup_store::take() {
  std::lock_guard const lock(unused_mutex);
  if (unused == nullptr) return loan(new wakeup);
  wakeup* const taken = unused;
  unused = std::exchange(taken->next_unused, nullptr);
  return loan(taken);
}

void wakeup_store::give_back::operator()(wakeup* returned) const noexcept {
  std::lock_guard const lock(unused_mutex);
  returned->next_unused = std::exchange(unused, returned);
}

}  // namespace escrow::inline v0_1
