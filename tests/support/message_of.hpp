// What errors say: of a call that must not be made, and those that a deleter reports.
#pragma once

#include <cstddef>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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

/// The errors that a deleter reported. Any thread.
class error_log {
 public:
  void add(std::string text) {
    std::lock_guard const lock{mutex_};
    texts_.push_back(std::move(text));
  }
  [[nodiscard]] std::size_t size() const {
    std::lock_guard const lock{mutex_};
    return texts_.size();
  }
  [[nodiscard]] std::string all() const {
    std::lock_guard const lock{mutex_};
    std::string result;
    for (std::string const& text : texts_) result += text + "\n";
    return result;
  }

 private:
  mutable std::mutex mutex_;  // guards texts_
  std::vector<std::string> texts_;
};

}  // namespace escrow::test
