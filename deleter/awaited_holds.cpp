// Whoever sees first that the event is done lets go; whoever comes last frees the hold.
#include "awaited_holds.hpp"

#include <array>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"

namespace escrow {

void awaited_holds::add(bundle_hold& sent) noexcept {
  std::lock_guard const lock(mutex_);
  link(sent);
}

bool awaited_holds::let_go_done() noexcept {
  std::unique_lock const turn(asking_mutex_, std::try_to_lock);
  if (turn) look_at_a_few();
  return turn.owns_lock();
}

void awaited_holds::let_go_done_after_others() noexcept {
  std::lock_guard const turn(asking_mutex_);
  look_at_a_few();
}

void awaited_holds::look_at_a_few() noexcept {
  constexpr std::size_t looks_max = 16;  // each takes 0.2 us
  std::array<bundle_hold*, looks_max> looked_at{};
  std::size_t count = 0;
  while (count < looks_max && (looked_at[count] = take_next()) != nullptr) ++count;
  if (count == 0) return;
  std::optional<relaxed_capture_scope> relaxed;  // a query would kill a capture
  try {
    relaxed.emplace();
  } catch (std::exception const&) {
    // They cannot be asked: the worker will.
  }
  for (std::size_t i = 0; i < count; ++i) {
    cudaError_t const status = relaxed ? cudaEventQuery(looked_at[i]->awaited_) : cudaErrorNotReady;
    static_cast<void>(succeeded(status));
    put_back(*looked_at[i], answer_of(status));
  }
}

bundle_hold* awaited_holds::take_next() noexcept {
  std::lock_guard const lock(mutex_);
  bundle_hold* const taken = first_;
  if (taken == nullptr) return nullptr;
  unlink(*taken);
  taken->is_looked_at_ = true;
  return taken;
}

void awaited_holds::put_back(bundle_hold& looked_at, ready_answer answer) noexcept {
  {
    std::lock_guard const lock(mutex_);
    looked_at.is_looked_at_ = false;
    if (answer == ready_answer::done) let_go(looked_at);
    if (!looked_at.is_reclaimed_) {
      if (answer == ready_answer::not_yet) link(looked_at);
      return;
    }
  }
  delete &looked_at;
}

void awaited_holds::reclaim(bundle_hold& done) noexcept {
  {
    std::lock_guard const lock(mutex_);
    if (done.is_listed_) unlink(done);
    let_go(done);
    done.is_reclaimed_ = true;
    if (done.is_looked_at_) return;  // put_back() frees it
  }
  delete &done;  // last: it keeps the hub
}

void awaited_holds::let_go(bundle_hold& hold) noexcept {
  if (!std::exchange(hold.has_let_go_, true)) hold.bundle_.let_go();
}

void awaited_holds::link(bundle_hold& hold) noexcept {
  hold.previous_ = last_;
  hold.next_ = nullptr;
  (last_ == nullptr ? first_ : last_->next_) = &hold;
  last_ = &hold;
  hold.is_listed_ = true;
}

void awaited_holds::unlink(bundle_hold& hold) noexcept {
  (hold.previous_ == nullptr ? first_ : hold.previous_->next_) = hold.next_;
  (hold.next_ == nullptr ? last_ : hold.next_->previous_) = hold.previous_;
  hold.is_listed_ = false;
}

}  // namespace escrow
