// One call of the library, with all that it may throw.
#pragma once

#include <exception>
#include <string>
#include <type_traits>

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
  try {
    inside_call const inside;
    action();
  } catch (pool_exhausted const&) {
    result = outcome::exhausted;
  } catch (usage_error const& error) {
    result = outcome::refused;
    what = error.what();
  } catch (std::exception const& error) {
    result = outcome::failed;
    what = error.what();
  }
  bool const disturbed = disarm_fault() || is_disturbed_ || lost_[0] || lost_[1];
  if (!disturbed && ((result == outcome::refused && !may_be_refused()) ||
                     (result == outcome::failed && !may_fail)))
    all_.fail("an operation threw for no reason: " + what);
  check_captures();
  return result;
}

}  // namespace escrow::test
