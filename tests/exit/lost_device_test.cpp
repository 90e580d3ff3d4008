// SPDX-License-Identifier: Apache-2.0
// A kernel writes to an illegal address, on the one device in use or on another one. Claims and
// launches throw the fault, and nothing hangs. On the one device everything is destroyed once;
// beside a lost one, what work may use is leaked, because CUDA does not tell when that is done.
#include <string_view>

#include "belongings.hpp"

namespace escrow::test {
namespace {

using namespace std::chrono_literals;

constexpr auto fault = cudaErrorIllegalAddress;

/// How the work is launched that fails or, beside a lost device, is in flight.
enum class launched { by_graph_exec, by_plain_exec, eagerly };

/// Whether `call` throws the fault and names a CUDA call; it may throw nothing else.
bool throws_the_fault(auto&& call) {
  try {
    call();
    return false;
  } catch (cuda_error const& error) {
    must_be(error.status(), fault);
    must(std::string_view{error.api()}.starts_with("cuda"), "the error names the call");
    must(std::string_view{error.what()}.find(error.api()) != std::string_view::npos,
         "the text names the call");
    return true;
  }
}

/// What is in use on device 0, which is lost, or on device 1, where the work then waits for a flag.
class doomed_world : public made_first, public belongings {
 public:
  doomed_world(launched how, bool is_on_1)
      : belongings(work(how, is_on_1)), device(is_on_1), how_(how) {}
  ~doomed_world() {
    flag.store(0, 1);
    static_cast<void>(device == 0 || is_work_over());  // before the flag is freed
  }

  /// Launches, and notices the fault.
  void lose_device() {
    fill(*held, stream, 2);
    retire(before);
    // The fault may be noticed as early as this.
    throws_the_fault([&] { launch(); });
    throws_the_fault([&] { retire(behind); });
    if (device == 1) {
      must(launch_add(stream, kernels_done.data(), 1));
      held.reset();
      must(cudaSetDevice(0));
      must(launch_illegal_address(failing));
    }
    must_be(cudaStreamSynchronize(device == 1 ? failing : stream), fault);
  }
  [[nodiscard]] bool is_work_over() const {
    return wait_until([this] { return kernels_done.load() == 1; });
  }
  [[nodiscard]] bool are_owners_destroyed_once() const {
    return wait_until(
        [this] { return in_graph->times() == 1 && before->times() == 1 && behind->times() == 1; });
  }
  void end_holders() {
    plain.reset();
    belongings::end_holders();
  }

  int const device;
  fate_ptr before = make_fate();
  owned_stream other = make_stream();
  owned_exec plain = instantiate(source.get());

 private:
  [[nodiscard]] kernel_call work(launched how, bool is_on_1) {
    must(cudaSetDevice(is_on_1));
    if (is_on_1) return wait_flag_call(flag.data());
    return how == launched::eagerly ? tiny_call() : illegal_address_call();
  }
  void launch() {
    switch (how_) {
      case launched::by_graph_exec:
        return exec->launch(stream.get());
      case launched::by_plain_exec:
        return escrow::check(cudaGraphLaunch(plain, stream), "cudaGraphLaunch");
      case launched::eagerly:
        return escrow::check(launch_illegal_address(stream), "cudaLaunchKernel");
    }
  }

  launched how_;
};

struct operation {
  char const* name;
  bool has_to_throw;  // or may also succeed
  void (*run)(doomed_world&);
};

constexpr std::array operations{
    operation{"claim", true, [](auto& w) { w.pool->claim(w.stream.get()).release(); }},
    operation{"try_claim", true, [](auto& w) { w.pool->try_claim(w.other.get()).reset(); }},
    operation{"try_claim_for", true,
              [](auto& w) { w.pool->try_claim_for(w.other.get(), 60s).reset(); }},
    operation{"launch", true, [](auto& w) { w.exec->launch(w.stream.get()); }},
    operation{"capture", true,
              [](auto& w) { graph const made = escrow::capture(w.other.get(), [](auto) {}); }},
    operation{"update", false, [](auto& w) { w.exec->update(w.source); }},
    operation{"clone", false, [](auto& w) { graph const copy = w.source.clone(); }},
    operation{"instantiate", false, [](auto& w) { graph_exec const more(w.source); }},
    operation{"retire to a graph", false,
              [](auto& w) { w.own->retire(w.source.get(), probe(make_fate())); }},
    operation{"hoist", false, [](auto& w) { hoist(w.source).release(); }},
};

void operations_throw_the_fault_or_work(doomed_world& world) {
  world.lose_device();
  int const made = world.counts->made.load();
  fate_ptr const retired = make_fate();
  fate_ptr const unused = make_fate();
  for (int current = 0; current <= world.device; ++current) {
    static_cast<void>(cudaSetDevice(current));
    for (operation const& each : operations) {
      bool const has_thrown = throws_the_fault([&] { each.run(world); });
      must(has_thrown || !each.has_to_throw, each.name);
    }
    probe owner(retired);
    bool const has_thrown = throws_the_fault(
        [&] { world.own->retire(stream_ref(world.stream.get()), std::move(owner)); });
    // NOLINTNEXTLINE(bugprone-use-after-move): that is the question
    must(owner.is_owner() == has_thrown, "a retire that throws leaves the owner with the caller");
    must(has_thrown || world.device == 0, "beside a lost device a retire throws");
  }
  must(world.counts->made.load() == made, "no resource was made");
  must(world.in_graph->times() == 0, "the graph holds what it held");
  world.own->retire(probe(unused));
  must(world.own->drain_for(generous), "the drain ends");
  must(unused->times() == 1, "what no work uses is destroyed");
  must(retired->times() == world.device + 1, "each owner is destroyed once");
  if (world.device == 1) return;
  world.end_holders();
  must(world.are_owners_destroyed_once(), "each owner once");
}

void a_waiting_claim_is_told(doomed_world& world) {
  std::vector<block_lease> out;
  while (auto claimed = world.pool->try_claim(world.other.get()))
    out.push_back(std::move(*claimed));
  std::atomic<bool> is_waiting{false};
  bool has_thrown = false;  // read after the join
  std::thread waiting([&] {
    is_waiting.store(true);
    has_thrown =
        throws_the_fault([&] { return world.pool->try_claim_for(world.other.get(), 60s); });
  });
  must(wait_until([&] { return is_waiting.load(); }), "the thread waits");
  std::this_thread::sleep_for(5ms);
  world.lose_device();
  waiting.join();
  must(has_thrown, "a claim that waits throws the fault");
}

void nothing_is_handed_out_again(doomed_world& world) {
  std::optional<claimer<block>> local = world.pool->on(world.other.get());
  std::optional<block_lease> out = local->claim();
  for (int i = 0; i < 2; ++i) static_cast<void>(local->claim());
  must(world.pool->stats().unrecorded == 1, "the claimer has an idle slot");
  world.lose_device();
  throws_the_fault([&] { world.held->release(); });
  world.held.reset();
  must(throws_the_fault([&] { return world.pool->claim(world.other.get()); }), "claim");
  must(throws_the_fault([&] { return local->claim(); }), "a claimer's claim");
  must(throws_the_fault([&] { local->flush(); }), "flush");
  must(throws_the_fault([&] { out->release(); }), "release");
  out.reset();
  local.reset();
  must(world.pool->stats().deferred == 0, "no record is awaited where nothing runs any more");
  must(world.pool->stats().unrecorded == 0, "nor kept for the claimer");
  auto const holders = world.pool->close_for(10ms);
  must(holders.size() == 1, "the graph is the only holder");
  must(holders[0].capture_id == world.source.id(), "it is named by its capture");
  must(holders[0].slots == 1 && holders[0].label == "blocks", "with its slot and the label");
  world.end_holders();
  must(world.pool->close_for(generous).empty(), "all has come back");
  must(world.own->drain_for(generous), "the drain ends");
  must(world.counts->alive() == 0, "each resource is destroyed");
  must(world.own->stats().leaked == 0, "nothing is leaked");
}

void everything_is_destroyed_once(doomed_world& world) {
  pinned_ints gate;
  must(launch_wait_flag(world.other, gate.data()));
  world.own->retire(stream_ref(world.other.get()), probe(make_fate()));
  std::atomic<bool> is_drained{false};
  std::thread draining([&] {
    world.own->drain();  // behind a kernel that only the fault ends
    is_drained.store(true);
  });
  world.lose_device();
  must(wait_until([&] { return is_drained.load(); }), "a drain that waits for the device ends");
  draining.join();
  must(world.in_graph->times() == 0, "the graph keeps its owner");
  world.end_holders();
  must(world.are_owners_destroyed_once(), "each owner once");
  must(world.in_graph->thread_name == "escrow", "on the worker");
  must(world.own->drain_for(generous), "the drain ends");
  world.pool.reset();
  must(wait_until([&] { return world.counts->alive() == 0; }), "each resource once");
  must(world.own->stats().leaked == 0, "nothing is leaked");
  must(world.own->stop_for(generous), "nothing is owed");
}

void an_open_capture_ends(doomed_world& world) {
  fate_ptr const fate = make_fate();
  must(cudaStreamBeginCapture(world.other, cudaStreamCaptureModeRelaxed));
  std::optional<block_lease> claimed = world.pool->claim(world.other.get());
  fill(*claimed, world.other, 3);
  world.own->retire(stream_ref(world.other.get()), probe(fate));
  world.lose_device();
  must(throws_the_fault([&] { return world.pool->claim(world.other.get()); }), "claim");
  claimed.reset();
  // Whether CUDA returns the graph, destroys it or forgets it, the rest goes on.
  cudaGraph_t captured = nullptr;
  if (cudaStreamEndCapture(world.other, &captured) == cudaSuccess) must(cudaGraphDestroy(captured));
  static_cast<void>(cudaGetLastError());
  world.end_holders();
  must(world.are_owners_destroyed_once(), "each owner once");
  must(world.own->drain_for(generous), "the drain ends");
  must(world.pool->close_for(10ms).size() <= 1, "the capture is the only one that may hold a slot");
  must(fate->times() <= 1, "its owner is destroyed once at most");
}

void nothing_in_use_is_destroyed(doomed_world& world) {
  auto const is_anything_destroyed = [&] {
    return world.in_graph->was_destroyed() || world.behind->was_destroyed() ||
           world.slots_destroyed->load() != 0;
  };
  world.lose_device();
  world.end_holders();
  world.pool.reset();
  must(stays_false(is_anything_destroyed), "not while the work runs");
  must(world.own->drain_for(generous), "a drain ends all the same");
  world.flag.store(0, 1);
  must(world.is_work_over(), "the work goes on, and ends");
  must(stays_false(is_anything_destroyed), "nor later: CUDA does not tell");
  must(world.own->stats().leaked != 0, "the deleter says so");
}

// Each row with each way to launch. A row without a function leaves all to the end of the process.
using row = std::pair<char const*, void (*)(doomed_world&)>;

std::vector<named_case> with_each_launch(std::vector<row> const& rows, bool is_on_1) {
  std::vector<std::pair<char const*, launched>> launches{{"_GraphExec", launched::by_graph_exec},
                                                         {"_PlainExec", launched::by_plain_exec}};
  // Beside a lost device each case has eager work, too.
  if (!is_on_1) launches.emplace_back("_Eager", launched::eagerly);
  std::vector<named_case> all;
  for (auto const& [name, run] : rows) {
    for (auto const& [suffix, how] : launches) {
      all.emplace_back(name + std::string(suffix), [run = run, how = how, is_on_1] {
        if (run == nullptr) {
          static doomed_world left_behind(how, is_on_1);
          return left_behind.lose_device();
        }
        doomed_world world(how, is_on_1);
        run(world);
      });
    }
  }
  return register_cases(std::move(all));
}

std::vector<named_case> const lost_cases =
    with_each_launch({{"OperationsThrowTheFaultOrWork", &operations_throw_the_fault_or_work},
                      {"AClaimThatWaitsIsTold", &a_waiting_claim_is_told},
                      {"NothingIsHandedOutAgain", &nothing_is_handed_out_again},
                      {"EverythingIsDestroyedOnce", &everything_is_destroyed_once},
                      {"AnOpenCaptureEnds", &an_open_capture_ends},
                      {"TheProcessExits", nullptr}},
                     false);
std::vector<named_case> const beside_cases =
    with_each_launch({{"OperationsThrow", &operations_throw_the_fault_or_work},
                      {"NothingInUseIsDestroyed", &nothing_in_use_is_destroyed},
                      {"TheProcessExitsBesideIt", nullptr}},
                     true);

using LostDevice = child_test;
TEST_P(LostDevice, LeavesEverythingBounded) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(After, LostDevice, testing::ValuesIn(lost_cases), &name_of_case);

class BesideALostDevice : public case_of_two_devices {};
TEST_P(BesideALostDevice, WorkGoesOnAndWhatItMayUseStays) {
  expect_clean_end(GetParam());
}
INSTANTIATE_TEST_SUITE_P(After, BesideALostDevice, testing::ValuesIn(beside_cases), &name_of_case);

}  // namespace
}  // namespace escrow::test
