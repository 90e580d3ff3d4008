// A call that the caller must not make, as an exception.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace escrow {

// What: the caller used Escrow wrongly. The text names the call, the argument and what to do
//   instead.
// Thread safety: a value; as any std::exception.
// Memory ordering: none.
// Lifetime: everything is copied.
// Capture: none.
// Errors: the constructor may throw std::bad_alloc, as std::logic_error does.
class usage_error : public std::logic_error {
 public:
  // `call` is the function of ours, e.g. "resource_pool::claim"; `problem` names the argument and
  // what is wrong with it; `advice` says what to do.
  usage_error(std::string_view call, std::string_view problem, std::string_view advice)
      : std::logic_error(std::string(call) + ": " + std::string(problem) + "; " +
                         std::string(advice)) {}
};

}  // namespace escrow
