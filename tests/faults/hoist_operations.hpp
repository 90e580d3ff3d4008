// Operations on hoisted references, and the reclaiming of what these and execs have let go of.
#pragma once

#include <map>
#include <string>

#include "exec_stage.hpp"

namespace escrow::test {

inline void add_hoists(operations_in<exec_stage>& all) {
  auto const hoisting = [](auto& in) {
    in.handle.emplace(hoist(*in.source));
    in.source_holds = false;
  };
  auto const hoisted_in_flight = [=](auto& in) {
    hoisting(in);
    owned_exec const launched = instantiate(in.source->get());
    must(cudaGraphLaunch(launched, in.one));
    must(cudaEventRecord(in.event, in.one));
    in.flying[0] = true;
    ++in.expected_runs;
  };
  all.add(
      "hoist", runs({"hoist"}), [](auto&) {}, hoisting);
  all.add(
      "hoist with a rival", runs({"hoist"}),
      [](auto& in) {
        in.rival.emplace(*in.source);
        in.launch(*in.rival, in.other);
      },
      hoisting);
  all.add("release after the stream", runs({"hoisted::release_after"}), hoisted_in_flight,
          [](auto& in) { in.handle->release_after(stream_ref(in.one)); });
  all.add("release after an event", runs({"hoisted::release_after"}), hoisted_in_flight,
          [](auto& in) { in.handle->release_after(event_ref(in.event)); });
  all.add("release now", runs({"hoisted::release"}), hoisting,
          [](auto& in) { in.handle->release(); });
  all.add("hoisted, what it holds", runs({"hoisted::held"}), hoisting,
          [](auto& in) { EXPECT_EQ(in.handle->held().owners, 1U); });
}

/// What execs and hoisted references have let go of, once their launches are done.
inline void add_reclaimed_holds(operations_in<exec_stage>& all) {
  auto const poll = [](auto& in) { in.worker->poll(); };
  auto const finish = [](auto& in) {
    in.flag.raise();
    must(cudaStreamSynchronize(in.one));
    sim::run_until_idle();
    in.flying.fill(false);
  };
  std::map<std::string, std::string> const later{
      {"*", "what could not be reclaimed is at the next poll"}};
  all.add(
         "poll, an exec ended in flight", runs({"deleter::poll"}),
         [](auto& in) {
           in.exec.emplace(*in.source);
           in.launch(*in.exec, in.one);
           in.exec.reset();
         },
         poll)
      .served_otherwise = later;
  all.add(
         "poll, an exec ended and done", runs({"deleter::poll"}),
         [=](auto& in) {
           in.exec.emplace(*in.source);
           in.launch(*in.exec, in.one);
           in.exec.reset();
           finish(in);
         },
         poll)
      .served_otherwise = later;
  all.add(
         "poll, an exec and its graph ended and done", runs({"deleter::poll"}),
         [=](auto& in) {
           in.exec.emplace(*in.source);
           in.launch(*in.exec, in.one);
           in.exec.reset();
           in.source_holds = false;
           in.source.reset();
           finish(in);
         },
         poll)
      .served_otherwise = later;
}

}  // namespace escrow::test
