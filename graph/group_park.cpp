// SPDX-License-Identifier: Apache-2.0
// Parking: in the group's turn, once nothing uses its memory.
#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/core/error.hpp"
#include "escrow/deleter/sharing_group.hpp"
#include "escrow/internal/environment.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/parked_group.hpp"
#include "holding.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr char const* parking = "sharing_group::park";
constexpr char const* unparking = "sharing_group::unpark";

using steady = std::chrono::steady_clock;

std::string in_words(group_order const& group) {
  return "the sharing group \"" + group.options.label + "\"";
}

// Asks again and again, until the answer is yes or the time is over. Returns the last answer.
template <class Call>
bool comes_true(steady::time_point end, Call is_so) {
  constexpr std::chrono::microseconds between(20);
  bool answer = is_so();
  while (!answer && steady::now() < end) {
    std::this_thread::sleep_for(between);
    answer = is_so();
  }
  return answer;
}

// The group's turn, without a launch.
class group_turn {
 public:
  group_turn(char const* call, std::shared_ptr<group_order> const& group,
             std::chrono::nanoseconds wait_max)
      : turn_(holding::turn_of(group)) {
    launch_lock const lock(call, turn_, wait_max, launch_lock::parked::allowed);
    turn_.enter();
  }
  group_turn(group_turn&&) = delete;
  ~group_turn() { turn_.step_out(); }

 private:
  holding turn_;
};

// The group is parked from now on, or not. Returns its arena; null: nothing was claimed yet, or it
// has none.
std::shared_ptr<group_memory> set_parked(group_order& group, bool is_parked) {
  std::lock_guard const lock(group.memory_mutex);  // an arena that is made since knows it
  // Sequentially consistent: see group_pins.
  if (group.is_parked.exchange(is_parked, std::memory_order_seq_cst) != is_parked) {
    count_parked(is_parked ? 1 : -1);
  }
  return group.memory;
}

void end_parking(group_order& group) {
  if (auto const its = set_parked(group, false)) its->reopen();  // also if it was made meanwhile
}

// From its construction on the group is parked, and what it refuses begins no more.
class parked_mark {
 public:
  explicit parked_mark(group_order& group) : memory(set_parked(group, true)), group_(group) {}
  parked_mark(parked_mark&&) = delete;
  ~parked_mark() {
    if (!stays_) end_parking(group_);
  }

  void stay() noexcept { stays_ = true; }

  std::shared_ptr<group_memory> const memory;

 private:
  group_order& group_;
  bool stays_ = false;
};

void wait_for_last_launch(group_order& group, steady::time_point end) {
  std::shared_ptr<launch_end> last;
  {
    std::lock_guard const lock(group.mutex);  // others may learn of an end meanwhile
    last = group.last;
    if (last == nullptr) return;
    bool const was_late = last->known() == end_state::late;
    bool const is_capturing = !last->record_late();
    if (was_late && last->known() == end_state::unknown) check(last->failure, "cudaEventRecord");
    if (last->known() == end_state::none) return;
    if (last->known() != end_state::recorded) {
      throw usage_error(
          parking, "the end of the last launch of " + in_words(group) + " is not known",
          is_capturing ? "its stream is being captured: call it after that"
                       : "launch on that stream again, or flush() its stream_launcher, before");
    }
  }
  relaxed_capture_scope const relaxed;  // otherwise the query could invalidate a capture
  cudaError_t status = cudaSuccess;
  bool const is_over = comes_true(end, [&] {
    status = cudaEventQuery(last->ready.get());
    static_cast<void>(succeeded(status));
    return answer_of(status) != ready_answer::not_yet;
  });
  if (answer_of(status) == ready_answer::gone || (!is_over && status != cudaErrorNotReady)) {
    check(status, "cudaEventQuery");
  }
  if (!is_over) {
    throw group_busy(std::string(parking) + ": the last launch of " + in_words(group) +
                     " has not ended; " +
                     (environment::simulated_steps() != 0
                          ? "time is stepped, and nobody steps: call sim::run_until_idle() before"
                          : "wait for it, or with a longer `wait_max`"));
  }
}

// What CUDA or the worker are about to end gets a little time.
steady::time_point soon(steady::time_point end) {
  return std::min(end, steady::now() + std::chrono::milliseconds(100));
}

void refuse_used(group_memory::use const& found) {
  if (!found.problem.empty()) throw usage_error(parking, found.problem, found.advice);
}

void wait_for_uses(group_memory& memory, steady::time_point end) {
  group_memory::use found;
  static_cast<void>(comes_true(soon(end), [&] {
    found = memory.used();
    return found.problem.empty();
  }));
  refuse_used(found);
}

void refuse_unknown_launches(group_order const& group, steady::time_point end) {
  std::optional<graph_registry::unknown_launches> found;
  static_cast<void>(comes_true(soon(end), [&] {
    found = graph_registry::global().unknown_launches_of(group);
    return !found || !found->may_pass;
  }));
  if (found) throw usage_error(parking, found->problem + ", in " + in_words(group), found->advice);
}

void wait_for_pins(group_order const& group, steady::time_point end) {
  // Sequentially consistent: see group_pins.
  auto const is_free = [&] { return group.pins.load(std::memory_order_seq_cst) == 0; };
  if (comes_true(end, is_free)) return;
  throw group_busy(std::string(parking) +
                   ": another thread instantiates, updates or copies a graph of " +
                   in_words(group) + "; call it later");
}

std::size_t park_memory(group_memory& memory, group_order const& group, park_options const& how,
                        steady::time_point end, parked_mark& mark) {
  refuse_used(memory.close());
  try {
    refuse_unknown_launches(group, end);
    return memory.park(how.keep_contents);
  } catch (...) {
    if (!memory.is_whole()) mark.stay();
    throw;
  }
}

std::size_t park_group(std::shared_ptr<group_order> const& group, park_options const& how) {
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(1 << 16);  // the sum must fit
  auto const end = steady::now() + std::min(how.wait_max, longest);
  std::size_t given_back = 0;
  {
    group_turn const turn(parking, group, how.wait_max);
    // Relaxed: it changes in the turn.
    if (group->is_parked.load(std::memory_order_relaxed)) refuse_parked(parking, *group);
    wait_for_last_launch(*group, end);
    // Both are asked again once the group is marked. Until then others' calls go on, also if this
    // waits or refuses.
    wait_for_pins(*group, end);
    if (auto const known = group->known_memory()) {
      wait_for_uses(*known, end);
      refuse_unknown_launches(*group, end);
    }
    parked_mark mark(*group);
    wait_for_pins(*group, end);
    if (mark.memory != nullptr) given_back = park_memory(*mark.memory, *group, how, end, mark);
    mark.stay();
  }
  // Relaxed: only the value matters.
  if (auto const trim = group->trim_pools.load(std::memory_order_relaxed)) {
    given_back += trim(*group);
  }
  return given_back;
}

std::size_t unpark_group(std::shared_ptr<group_order> const& group) {
  group_turn const turn(unparking, group, park_options().wait_max);
  // Relaxed: it changes in the turn.
  if (!group->is_parked.load(std::memory_order_relaxed)) {
    throw usage_error(unparking, in_words(*group) + " is not parked", "park() it before");
  }
  std::shared_ptr<group_memory> const memory = group->known_memory();
  std::size_t mapped = 0;
  try {
    if (memory != nullptr) mapped = memory->unpark();
  } catch (cuda_error const& failed) {
    bool const is_full = failed.status() == cudaErrorMemoryAllocation;
    throw cuda_error(failed.status(), failed.api(), source_location::current(),
                     in_words(*group) + " is still parked: " +
                         (is_full ? "free memory of the device, then unpark() again"
                                  : "unpark() may be tried again"));
  }
  end_parking(*group);
  return mapped;
}

template <class Call>
std::vector<parked_group> for_all(bool are_parked, Call call) {
  std::vector<parked_group> report;
  for (auto const& each : all_groups()) {
    // Relaxed: who misses a change is told by the call.
    if (each->is_parked.load(std::memory_order_relaxed) != are_parked) continue;
    parked_group& its = report.emplace_back();
    its.label = each->options.label;
    try {
      its.bytes = call(each);
    } catch (std::exception const& refused) {
      its.refusal = refused.what();
    }
    tell_handed_over(static_cast<launch_order*>(each.get()));
  }
  return report;
}

}  // namespace

std::size_t sharing_group::park(park_options options, source_location where) const {
  return detail::called_at(parking, where, [&] { return park_group(order_, options); });
}

std::size_t sharing_group::unpark(source_location where) const {
  return detail::called_at(unparking, where, [&] { return unpark_group(order_); });
}

std::vector<parked_group> park_all(park_options options, source_location where) {
  return for_all(false, [&](auto const& each) {
    return detail::called_at(parking, where, [&] { return park_group(each, options); });
  });
}

std::vector<parked_group> unpark_all(source_location where) {
  return for_all(true, [&](auto const& each) {
    return detail::called_at(unparking, where, [&] { return unpark_group(each); });
  });
}

}  // namespace escrow::inline v0_2
