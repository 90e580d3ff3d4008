// What a call that must not be made says.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace escrow::test {

/// The message of what `call` throws, if it is an `Exception`; otherwise says what came instead.
template <class Exception, class Call>
[[nodiscard]] std::string message_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (Exception const& error) {
    return error.what();
  } catch (std::exception const& error) {
    return std::string{"another exception: "} + error.what();
  }
  return "nothing was thrown";
}

}  // namespace escrow::test
