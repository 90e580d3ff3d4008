// The operations on graphs and execs that are made to fail, in each way that they can go.
#pragma once

#include <functional>
#include <ostream>
#include <vector>

#include "exec_fault_world.hpp"

namespace escrow::test {

/// An operation, what it needs, and its guarantee.
struct exec_scenario {
  char const* name;
  std::function<void(exec_world&)> prepare;
  std::function<void(exec_world&)> act;
  bool is_strong = true;  // failed, it has changed nothing and can be tried again
};

inline void PrintTo(exec_scenario const& scenario, std::ostream* out) {
  *out << scenario.name;
}

inline std::vector<exec_scenario> instantiate_scenarios() {
  using world = exec_world;
  auto const of_source = [](world& w) { w.exec.emplace(*w.source); };
  return {
      {"Instantiate", [](world&) {}, of_source},
      {"InstantiateByHandle", [](world&) {}, [](world& w) { w.exec.emplace(w.source->get()); }},
      {"InstantiateWithABundle", [](world& w) { w.rival.emplace(*w.source); }, of_source},
      {"InstantiateWithARivalInFlight",
       [](world& w) {
         w.rival.emplace(*w.source);
         w.launch(*w.rival, w.other);
       },
       of_source},
      {"InstantiateAClone", [](world& w) { w.copy.emplace(w.source->clone()); },
       [](world& w) { w.exec.emplace(*w.copy); }},
      {"InstantiateAParent",
       [](world& w) {
         w.second.emplace(w.captured(2));
         w.parent.emplace();
         w.parent->add_child(*w.source);
         w.parent->add_child(*w.second);
       },
       [](world& w) { w.exec.emplace(*w.parent); }},
      {"InstantiateAPlainParent",
       [](world& w) {
         w.plain = make_graph();
         test::add_child(w.plain, w.source->get());
         add_kernel(w.plain, tiny_call());
       },
       [](world& w) { w.exec.emplace(w.plain.get()); }},
      {"InstantiateAfterMoreWasCaptured",
       [](world& w) {
         w.rival.emplace(*w.source);
         w.owners.emplace_back();
         w.worker->retire(w.source->get(), w.owners.back().owner());
       },
       of_source},
  };
}

inline std::vector<exec_scenario> launch_scenarios() {
  using world = exec_world;
  return {
      {"Launch", [](world& w) { w.exec.emplace(*w.source); },
       [](world& w) { w.launch(*w.exec, w.one); }},
      {"LaunchAgain",
       [](world& w) {
         w.exec.emplace(*w.source);
         w.launch(*w.exec, w.one);
       },
       [](world& w) { w.launch(*w.exec, w.other); }},
      {"LaunchBehindARival",
       [](world& w) {
         w.exec.emplace(*w.source);
         w.rival.emplace(*w.source);
         w.launch(*w.rival, w.other);
       },
       [](world& w) { w.launch(*w.exec, w.one); }},
      {"LaunchBehindARivalThatEnded",
       [](world& w) {
         w.exec.emplace(*w.source);
         w.rival.emplace(w.source->clone());
         w.launch(*w.rival, w.other);
         w.rival.reset();
       },
       [](world& w) { w.launch(*w.exec, w.one); }},
      {"Upload", [](world& w) { w.exec.emplace(*w.source); },
       [](world& w) { w.exec->upload(w.one); }},
  };
}

inline std::vector<exec_scenario> update_scenarios() {
  using world = exec_world;
  auto const to_second = [](world& w) { w.exec->update(*w.second); };
  auto const with_both = [](world& w) {
    w.second.emplace(w.captured(2));
    w.exec.emplace(*w.source);
  };
  return {
      {"Update", with_both, to_second},
      {"UpdateByHandle", with_both, [](world& w) { w.exec->update(w.second->get()); }},
      {"UpdateToABundle",
       [=](world& w) {
         with_both(w);
         w.rival.emplace(*w.second);
         w.launch(*w.rival, w.other, 1);
       },
       to_second},
      {"UpdateInFlight",
       [=](world& w) {
         with_both(w);
         w.launch(*w.exec, w.one);
       },
       to_second},
      {"UpdateToTheSameInFlight",
       [](world& w) {
         w.exec.emplace(*w.source);
         w.launch(*w.exec, w.one);
       },
       [](world& w) { w.exec->update(*w.source); }},
      {"UpdateToACloneInFlight",
       [](world& w) {
         w.copy.emplace(w.source->clone());
         w.exec.emplace(*w.source);
         w.launch(*w.exec, w.one);
       },
       [](world& w) { w.exec->update(*w.copy); }},
  };
}

inline std::vector<exec_scenario> end_scenarios() {
  using world = exec_world;
  auto const ending = [](world& w) { w.exec.reset(); };
  return {
      {"DestroyIdle", [](world& w) { w.exec.emplace(*w.source); }, ending, false},
      {"DestroyInFlight",
       [](world& w) {
         w.exec.emplace(*w.source);
         w.launch(*w.exec, w.one);
       },
       ending, false},
      {"DestroyInFlightWithARival",
       [](world& w) {
         w.exec.emplace(*w.source);
         w.rival.emplace(*w.source);
         w.launch(*w.rival, w.other);
         w.launch(*w.exec, w.one);
       },
       ending, false},
      {"DestroyTheGraph",
       [](world& w) {
         w.exec.emplace(*w.source);
         w.launch(*w.exec, w.one);
       },
       [](world& w) {
         w.source_holds = false;
         w.source.reset();
       },
       false},
  };
}

inline std::vector<exec_scenario> copy_scenarios() {
  using world = exec_world;
  auto const cloning = [](world& w) { w.copy.emplace(w.source->clone()); };
  return {
      {"Clone", [](world&) {}, cloning},
      {"CloneWithABundle", [](world& w) { w.exec.emplace(*w.source); }, cloning},
      {"CloneAParent",
       [](world& w) {
         w.parent.emplace();
         w.parent->add_child(*w.source);
       },
       [](world& w) { w.copy.emplace(w.parent->clone()); }},
      {"AddAChild",
       [](world& w) {
         w.parent.emplace();
         add_kernel(w.parent->get(), tiny_call());
       },
       [](world& w) { w.parent->add_child(*w.source); }},
      {"AddAParentAsChild",
       [](world& w) {
         w.copy.emplace();
         w.copy->add_child(*w.source);
         w.parent.emplace();
       },
       [](world& w) { w.parent->add_child(*w.copy); }},
  };
}

inline std::vector<exec_scenario> hoist_scenarios() {
  using world = exec_world;
  auto const hoisting = [](world& w) {
    w.handle.emplace(hoist(*w.source));
    w.source_holds = false;
  };
  auto const hoisted_in_flight = [=](world& w) {
    hoisting(w);
    owned_exec const launched = instantiate(w.source->get());
    must(cudaGraphLaunch(launched, w.one));
    must(cudaEventRecord(w.event, w.one));
    w.flying[0] = true;
    ++w.expected_runs;
  };
  return {
      {"Hoist", [](world&) {}, hoisting},
      {"HoistWithARival",
       [](world& w) {
         w.rival.emplace(*w.source);
         w.launch(*w.rival, w.other);
       },
       hoisting},
      {"ReleaseAfterTheStream", hoisted_in_flight,
       [](world& w) { w.handle->release_after(stream_ref(w.one)); }},
      {"ReleaseAfterAnEvent", hoisted_in_flight,
       [](world& w) { w.handle->release_after(event_ref(w.event)); }},
      {"ReleaseNow", hoisting, [](world& w) { w.handle->release(); }},
  };
}

/// Every operation, in each way that it can go.
inline std::vector<exec_scenario> const& exec_scenarios() {
  static std::vector<exec_scenario> const all = [] {
    std::vector<exec_scenario> joined;
    for (auto const& group : {instantiate_scenarios(), launch_scenarios(), update_scenarios(),
                              end_scenarios(), copy_scenarios(), hoist_scenarios()}) {
      joined.insert(joined.end(), group.begin(), group.end());
    }
    return joined;
  }();
  return all;
}

}  // namespace escrow::test
