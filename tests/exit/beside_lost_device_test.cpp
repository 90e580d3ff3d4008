// One of two devices fails while the other works with everything: from then on nothing tells when
// that work is done, so that what it may use is never destroyed, and nothing hangs. The fault ruins
// its process, so that each case has one of its own.
#include <escrow/detail/device.hpp>
#include <string>
#include <vector>

#include "../support/child_cases.hpp"
#include "clean_end.hpp"
#include "faulting_world.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

constexpr int as_expected = 42;
constexpr int failing = 0;
constexpr int healthy = 1;

/// Work of the healthy device that waits for a flag, with all that may be let go while it runs: an
/// owner retired behind it, a slot of a pool, and what two graphs hold whose execs are in flight, a
/// plain one and a graph_exec.
class two_devices {
 public:
  two_devices() {
    must(cudaSetDevice(failing));
    doomed = make_stream();
    must(cudaSetDevice(healthy));
    stream = make_stream();
    other = make_stream();
    pool_options chosen;
    chosen.device = healthy;
    chosen.deleter = &own;
    pool.emplace(chosen, [its = counts] { return block{*its}; });
    bare.emplace(captured(in_bare));
    plain = instantiate(captured(in_plain).get());
    must(launch_wait_flag(stream, flag.data()));
    block_lease const claimed = pool->claim(stream.get());
    own.retire(stream_ref(stream.get()), probe(behind));
    bare->launch(other.get());
    must(cudaGraphLaunch(plain, other));
    must(launch_add(stream, cell.data(), 1));
    must(launch_add(other, cell.data(), 1));
  }

  two_devices(two_devices&&) = delete;
  ~two_devices() {
    flag.store(0, 1);
    static_cast<void>(is_work_over());  // before the flag goes
  }

  [[nodiscard]] bool is_work_over() const {
    return wait_until([this] { return cell.load() == 2; });
  }
  void break_one() {
    must(cudaSetDevice(failing));
    must(launch_illegal_address(doomed));
    must_be(cudaStreamSynchronize(doomed), fault);
  }
  void let_go_of_all() {
    bare.reset();
    plain.reset();
    pool.reset();
  }
  [[nodiscard]] bool is_anything_destroyed() const {
    return in_bare->was_destroyed() || in_plain->was_destroyed() || behind->was_destroyed() ||
           counts->destroyed.load() != 0;
  }

  std::shared_ptr<tally> counts = std::make_shared<tally>();  // the pool's, too
  fate_ptr in_bare = make_fate();
  fate_ptr in_plain = make_fate();
  fate_ptr behind = make_fate();
  pinned_ints flag;
  pinned_ints cell{1};
  owned_stream doomed;
  owned_stream stream;
  owned_stream other;
  deleter own;
  std::optional<block_pool> pool;
  std::optional<graph_exec> bare;
  owned_exec plain;

 private:
  [[nodiscard]] graph captured(fate_ptr const& held) {
    return escrow::capture(other.get(), [&](stream_ref on) {
      must(launch_wait_flag(on.get(), flag.data()));
      block_lease const claimed = pool->claim(on);
      own.retire(on, probe(held));
    });
  }
};

int nothing_in_use_is_destroyed() {
  two_devices both;
  both.break_one();
  both.let_go_of_all();
  must(stays_false([&] { return both.is_anything_destroyed(); }), "not while the work runs");
  must(both.own.drain_for(generous), "a drain ends all the same");
  both.flag.store(0, 1);
  must(both.is_work_over(), "the work goes on, and ends");
  must(stays_false([&] { return both.is_anything_destroyed(); }), "nor later: nothing tells");
  must(both.own.stats().leaked != 0, "the deleter says so");
  return as_expected;
}

int claims_and_launches_throw() {
  two_devices both;
  both.break_one();
  for (int const current : {failing, healthy}) {
    static_cast<void>(cudaSetDevice(current));
    must_throw_the_fault("claim", [&] { static_cast<void>(both.pool->claim(both.stream.get())); });
    must_throw_the_fault("launch", [&] { both.bare->launch(both.stream.get()); });
    probe owner(make_fate());
    must_throw_the_fault("retire",
                         [&] { both.own.retire(stream_ref(both.stream.get()), std::move(owner)); });
    // NOLINTNEXTLINE(bugprone-use-after-move): that is the question
    must(owner.is_owner(), "the caller still has it");
  }
  return as_expected;
}

int what_no_work_uses_is_destroyed() {
  two_devices both;
  both.break_one();
  static_cast<void>(cudaSetDevice(healthy));
  fate_ptr const unused = make_fate();
  both.own.retire(probe(unused));
  must(both.own.drain_for(generous), "the drain ends");
  must(unused->times() == 1, "nothing else is to be waited for");
  return as_expected;
}

int the_process_exits() {
  static two_devices both;
  both.break_one();
  return as_expected;
}

std::vector<named_case> const fault_cases = register_cases({
    {"NothingInUseIsDestroyed", &nothing_in_use_is_destroyed},
    {"ClaimsLaunchesAndRetirementsThrow", &claims_and_launches_throw},
    {"WhatNoWorkUsesIsDestroyed", &what_no_work_uses_is_destroyed},
    {"TheProcessExits", &the_process_exits},
});

class BesideALostDevice : public case_of_two_devices {};

TEST_P(BesideALostDevice, WorkGoesOnAndWhatItMayUseStays) {
  expect_clean_end(GetParam().name, as_expected);
}

INSTANTIATE_TEST_SUITE_P(After, BesideALostDevice, testing::ValuesIn(fault_cases), &name_of_case);

}  // namespace
}  // namespace escrow::test
