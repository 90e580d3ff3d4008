// The list of wakeups that no deleter_core uses.
#include "wakeup.hpp"

#include <mutex>
#include <vector>

#include "escrow/detail/never_destroyed.hpp"

namespace escrow {

namespace {

struct store {
  std::mutex mutex;  // guards the rest
  std::vector<wakeup*>
      unused;  // has room for all that were ever made, so that giving back never allocates
  std::size_t made = 0;
};

store& the_store() {
  static never_destroyed<store> only;
  return *only;
}

}  // namespace

wakeup_store::loan wakeup_store::take() {
  store& all = the_store();
  std::lock_guard const lock(all.mutex);
  if (all.unused.empty()) {
    all.unused.reserve(all.made + 1);
    all.unused.push_back(new wakeup);
    ++all.made;
  }
  loan taken(all.unused.back());
  all.unused.pop_back();
  return taken;
}

void wakeup_store::give_back::operator()(wakeup* unused) const noexcept {
  store& all = the_store();
  std::lock_guard const lock(all.mutex);
  all.unused.push_back(unused);
}

}  // namespace escrow
