// Graphs as wholes, and captures.
#pragma once

#include "build_stage.hpp"

namespace escrow::test {

inline void add_graphs(operations_in<build_stage>& all) {
  auto const nothing = [](build_stage&) {};
  all.add("graph, made", runs({"graph::graph"}), nothing, [](auto& in) { in.copy.emplace(); });
  all.add("graph, made for a deleter", runs({"graph::graph"}), nothing,
          [](auto& in) { in.copy.emplace(in.keeper); });
  all.add(
         "graph, taken over", runs({"graph::graph"}), [](auto& in) { in.plain = make_graph(); },
         [](auto& in) { in.copy.emplace(in.plain.release()); })
      .stated = {{"*", "the graph is destroyed if it cannot be taken over"}};
  all.add("graph, empty, cloned", runs({"graph::clone"}), nothing,
          [](auto& in) { in.copy.emplace(in.built->clone()); });
  all.add("graph, empty, its handle", runs({"graph::get"}), nothing,
          [](auto& in) { in.answer = in.built->get() != nullptr ? "handle" : "null"; });
  all.add(
      "graph, written", runs({"graph::write_dot"}), [](auto& in) { in.build_one(); },
      [](auto& in) { in.built->write_dot("/dev/null"); });
}

inline void add_captures(operations_in<build_stage>& all) {
  auto const begin = [](build_stage& in) { in.scope.emplace(in.stream); };
  all.add(
      "capture, begun", runs({"capture_scope::capture_scope"}), [](auto&) {}, begin);
  auto const with_work = [=](build_stage& in) {
    begin(in);
    must(launch_add(in.stream, in.cells.data(), 3));
  };
  // "After a failed end() the capture is over and the graph is gone."
  all.add("capture, ended", runs({"capture_scope::end"}), with_work,
          [](auto& in) {
            in.copy.emplace(in.scope->end());
            in.scope.reset();
          })
      .stated = {{"*", "after a failed end() the capture is over and the graph is gone"}};
  all.add("capture, dropped", runs({"capture_scope::~capture_scope"}), with_work,
          [](auto& in) { in.scope.reset(); });
  all.add(
      "capture, as a call", runs({"capture"}), [](auto&) {},
      [](auto& in) {
        in.copy.emplace(escrow::capture(in.stream, [&in](stream_ref on) {
          escrow::check(launch_add(on.get(), in.cells.data(), 3), "cudaLaunchKernel");
        }));
      });
}

}  // namespace escrow::test
