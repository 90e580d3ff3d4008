// Threads that wait for work, one at a time.
#include "team.hpp"

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "program.hpp"

namespace escrow::test {

namespace {

/// One thread, from its first work to the program's end.
class helper {
 public:
  helper() : thread_([this] { work(); }) {}
  helper(helper&&) = delete;
  ~helper() {
    {
      std::lock_guard const lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void run(std::function<void()> const& work) {
    std::unique_lock lock(mutex_);
    work_ = &work;
    changed_.notify_all();
    changed_.wait(lock, [this] { return work_ == nullptr; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return work_ != nullptr || is_ending_; });
      if (work_ == nullptr) return;
      (*work_)();
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards the rest; the caller waits while the work is done under it
  std::condition_variable changed_;
  std::function<void()> const* work_ = nullptr;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace

void team::on(std::size_t thread, std::function<void()> const& work) {
  if (thread == 0) return work();
  static std::array<std::unique_ptr<helper>, program::threads_max> helpers;
  if (helpers.at(thread) == nullptr) helpers.at(thread) = std::make_unique<helper>();
  helpers.at(thread)->run(work);
}

}  // namespace escrow::test
