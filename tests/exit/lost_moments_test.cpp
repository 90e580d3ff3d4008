// SPDX-License-Identifier: Apache-2.0
// A device is lost at moments that only the simulated runtime can choose. Beside it, what work of
// another device may use is leaked, and drains return. Each case has a process of its own.
#include "belongings.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/ready_event.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

constexpr auto fault = cudaErrorIllegalAddress;

void lose_device_0() {
  sim::fail_device(0, fault);
}

/// What is in use on device 1, where a kernel waits for the flag.
struct beside_it : made_first, belongings {
  explicit beside_it(bool has_worker)
      : belongings((must(cudaSetDevice(1)), tiny_call()), has_worker) {
    must(launch_wait_flag(stream, flag.data()));
    must(cudaEventRecord(ready, stream));
  }
  ~beside_it() {
    flag.store(0, 1);
    sim::clear_faults();
    static_cast<void>(cudaStreamSynchronize(stream));
  }
  owned_event ready = make_event();
};

void owner_retired_afterwards(beside_it& work) {
  lose_device_0();
  work.own->retire_after(work.ready.get(), probe(work.behind));
}

void owner_and_the_lost_device_is_reset(beside_it& work) {
  work.own->retire_after(work.ready.get(), probe(work.behind));
  lose_device_0();
  must(!runs_nothing_after(fault) && may_work_go_on_untold(), "the other device may run");
  static_cast<void>(cudaSetDevice(0));
  must(cudaDeviceReset());
  must(!runs_nothing_after(fault) && may_work_go_on_untold(), "the other device still runs");
}

void lease_ended_afterwards(beside_it& work) {
  lose_device_0();
  work.held.reset();
  must(work.pool->stats().deferred == 1, "the slot waits for a record");
  work.pool.reset();
}

/// `ends_before`: the pool; else the claimer.
template <bool ends_before>
void idle_slot_of_a_claimer(beside_it& work) {
  std::optional<claimer<block>> local = work.pool->on(work.stream.get());
  for (int i = 0; i < 2; ++i) static_cast<void>(local->claim());
  must(work.pool->stats().unrecorded == 1, "the claimer keeps it");
  lose_device_0();
  if (ends_before) work.pool.reset();
  local.reset();
  if (ends_before) return;
  must(work.pool->stats().deferred == 1, "the slot waits for a record");
  work.pool.reset();
}

void covered_slot_of_a_claimer(beside_it& work) {
  {
    claimer<block> local = work.pool->on(work.stream.get());
    for (int i = 0; i < 2; ++i) static_cast<void>(local.claim());
  }
  must(work.pool->stats().idle == 1, "an event covers it");
  lose_device_0();
  work.pool.reset();
}

void must_leak_one(void (*lose)(beside_it&), bool has_worker) {
  beside_it work(has_worker);
  lose(work);
  must(work.own->drain_for(generous), "the drain ends");
  must(!work.behind->was_destroyed(), "an owner is not destroyed while the kernel runs");
  must(work.counts->destroyed.load() == 0, "nor is a slot");
  must(work.own->stats().leaked == 1, "it is leaked, and counted");
}

// Core's answers with one device in use: nothing runs, unless CUDA cannot be asked.
void with_one_device_nothing_runs() {
  owned_stream const stream = make_stream();
  must(!may_work_go_on_untold(), "there is no fault yet");
  must(answer_of(cudaErrorNotReady) == ready_answer::not_yet, "no fault");
  must(!runs_nothing_after(cudaErrorInvalidValue), "no fault");
  event ready;
  int device = 0;
  lose_device_0();
  must(answer_of(fault) == ready_answer::done, "nothing runs");
  must(runs_nothing_after(fault), "nothing runs");
  must(record_ready(ready, device, stream).outcome == record_outcome::device_lost, "nothing runs");
  must(!may_work_go_on_untold(), "no other device is in use");
  sim::clear_faults();
  // Refused first, and lost at the next call.
  sim::fail_call("cudaEventRecord", cudaErrorInvalidValue);
  sim::fail_nth(2, fault);
  must(record_ready(ready, device, stream).outcome == record_outcome::device_lost, "nothing runs");
  for (char const* const call : {"cudaGetDeviceCount", "cudaGetDriverEntryPointByVersion"}) {
    sim::fail_call(call, cudaErrorUnknown, 1, 2);  // once for each device
    must(!runs_nothing_after(fault), call);
  }
}

void threads_that_claim_and_release_end_with_errors() {
  belongings world;
  std::atomic<int> rounds{0};
  std::atomic<int> failed{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      try {
        owned_stream const stream = make_stream();
        while (true) {
          block_lease held = world.pool->try_claim_for(stream.get(), 60s).value();
          must(launch_tiny(stream));
          held.release();
          rounds.fetch_add(1);
        }
      } catch (std::runtime_error const&) {  // a cuda_error, or of must()
        failed.fetch_add(1);
      }
    });
  }
  must(wait_until([&] { return rounds.load() > 100; }), "they claim");
  lose_device_0();
  threads.clear();
  must(failed.load() == 4, "each throws the fault");
  world.end_holders();
  world.pool.reset();
  must(world.own->drain_for(generous), "the drain ends");
  must(world.counts->alive() == static_cast<int>(world.own->stats().leaked), "no slot is lost");
}

std::vector<named_case> all_beside() {
  std::pair<char const*, void (*)(beside_it&)> const rows[] = {
      {"AnOwnerRetiredAfterwards", &owner_retired_afterwards},
      {"AnOwnerAlsoIfTheLostDeviceIsReset", &owner_and_the_lost_device_is_reset},
      {"ALeaseEndedAfterwards", &lease_ended_afterwards},
      {"WhatAClaimerKept", &idle_slot_of_a_claimer<false>},
      {"WhatAClaimerKeptAfterItsPool", &idle_slot_of_a_claimer<true>},
      {"WhatAClaimerHadCovered", &covered_slot_of_a_claimer}};
  std::vector<named_case> all;
  for (auto const& [name, lose] : rows) {
    all.emplace_back(name + std::string("_OwnWorker"),
                     [lose = lose] { must_leak_one(lose, true); });
    all.emplace_back(name + std::string("_Polled"), [lose = lose] { must_leak_one(lose, false); });
  }
  return all;
}

std::vector<named_case> const beside_cases = register_cases(all_beside());
std::vector<named_case> const one_device_cases = register_cases({
    {"CoreKnowsThatNothingRuns", &with_one_device_nothing_runs},
    {"ThreadsThatClaimEndWithErrors", &threads_that_claim_and_release_end_with_errors},
});

using LossBesideWork = child_test;
TEST_P(LossBesideWork, LeaksWhatTheWorkMayUse) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(At, LossBesideWork, testing::ValuesIn(beside_cases), &name_of_case);

using LossOfTheOneDevice = child_test;
TEST_P(LossOfTheOneDevice, LeavesNothingRunning) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(At, LossOfTheOneDevice, testing::ValuesIn(one_device_cases),
                         &name_of_case);

}  // namespace
}  // namespace escrow::test
