// One call of the library, with all that it may throw.
#pragma once

#include <exception>
#include <string>

#include "world.hpp"

namespace escrow::test {

// `may_refuse`: usage_error is right; `may_fail`: cuda_error is. Both are after a fault.
template <class Action>
outcome world::attempt(bool may_refuse, bool may_fail, Action action) {
  outcome result = outcome::done;
  std::string what;
  arm_fault();
  try {
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
  if (!disturbed &&
      ((result == outcome::refused && !may_refuse) || (result == outcome::failed && !may_fail)))
    all_.fail("an operation threw for no reason: " + what);
  check_captures();
  return result;
}

}  // namespace escrow::test
