// One call of the library, with all that it may throw.
#pragma once

#include <exception>
#include <string>
#include <type_traits>

#include "allocation_watch.hpp"
#include "baton.hpp"
#include "world.hpp"

namespace escrow::test {

class world::inside_call {
 public:
  inside_call() { mark(true); }
  inside_call(inside_call&&) = delete;
  ~inside_call() { mark(false); }

 private:
  static void mark(bool is_inside) {
    if (mine_ != nullptr) mine_->is_inside = is_inside;
  }
  open_points const others_may_go_on_;
};

/// One of the library's allocations fails, to its end; then says whether there was one.
class failing_allocation {
 public:
  failing_allocation(std::uint64_t number, bool& failed)
      : number_(number), failed_(failed), watch_(number) {}
  failing_allocation(failing_allocation&&) = delete;
  ~failing_allocation() { failed_ = watch_.count() >= number_; }

 private:
  std::uint64_t number_;
  bool& failed_;
  allocation_watch watch_;
};

// `may_refuse`: usage_error is right, or a function that says so afterwards; `may_fail`: cuda_error
// is. Both are after a fault.
template <class Permission, class Action>
outcome world::attempt(Permission may_refuse, bool may_fail, Action action) {
  auto const may_be_refused = [&] {
    if constexpr (std::is_invocable_v<Permission>)
      return may_refuse();
    else
      return may_refuse;
  };
  outcome result = outcome::done;
  std::string what;
  arm_fault();
  bool ran_out = false;
  try {
    inside_call const inside;
    if (mine_ != nullptr && mine_->what->failing_allocation != 0) {
      failing_allocation const failing(mine_->what->failing_allocation, ran_out);
      action();
    } else {
      action();
    }
  } catch (pool_exhausted const&) {
    result = outcome::exhausted;
  } catch (usage_error const& error) {
    result = outcome::refused;
    what = error.what();
  } catch (std::exception const& error) {
    result = outcome::failed;
    what = error.what();
  }
  if (ran_out) {
    counts_.meet(situation::allocation_failed);
    is_disturbed_ = true;
  }
  bool const disturbed = disarm_fault() || is_disturbed_ || lost_[0] || lost_[1];
  if (!disturbed && ((result == outcome::refused && !may_be_refused()) ||
                     (result == outcome::failed && !may_fail)))
    all_.fail("an operation threw for no reason: " + what);
  check_captures();
  return result;
}

}  // namespace escrow::test
