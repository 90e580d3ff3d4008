// Graphs as wholes, questions to nodes, and captures.
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
  auto const two = [](build_stage& in) {
    in.build_one();
    in.first->add(kernel_node(in.add, {}, in.cells.data(), 1));
    in.expected = 2;
  };
  all.add("graph, nodes", runs({"graph_builder_ref::nodes"}), two,
          [](auto& in) { in.answer = std::to_string(build(*in.built).nodes().size()); });
  all.add("graph, edges", runs({"graph_builder_ref::edges"}), two,
          [](auto& in) { in.answer = std::to_string(build(*in.built).edges().size()); });
  all.add("graph, written", runs({"graph::write_dot"}), two,
          [](auto& in) { in.built->write_dot("/dev/null"); });
  all.add("node, type", runs({"node::type"}), two,
          [](auto& in) { in.answer = std::to_string(in.first->type()); });
  all.add("node, predecessors", runs({"node::predecessors"}), two, [](auto& in) {
    in.answer = std::to_string(build(*in.built).nodes().back().predecessors().size());
  });
  all.add("node, successors", runs({"node::successors"}), two,
          [](auto& in) { in.answer = std::to_string(in.first->successors().size()); });
}

/// Questions to a node of a kind.
inline void add_questions(operations_in<build_stage>& all) {
  using ask = operations_in<build_stage>::step;
  auto const asked = [&all](std::string const& what, std::vector<std::string> names, ask add,
                            ask question) {
    all.add("node, parameters of a " + what, std::move(names), std::move(add), std::move(question));
  };
  asked(
      "kernel", runs({"node::kernel_parameters"}), [](auto& in) { in.build_one(); },
      [](auto& in) { in.answer = std::to_string(in.first->kernel_parameters().grid.x); });
  asked(
      "memset", runs({"node::memset_parameters"}),
      [](auto& in) { in.first.emplace(of_memset::add(*in.kinds, *in.built, 1)); },
      [](auto& in) { in.answer = std::to_string(in.first->memset_parameters().value); });
  asked(
      "memcpy", runs({"node::memcpy_parameters"}),
      [](auto& in) { in.first.emplace(of_memcpy::add(*in.kinds, *in.built, 1)); },
      [](auto& in) { in.answer = std::to_string(in.first->memcpy_parameters().extent.width); });
  asked(
      "call", runs({"node::host_parameters"}),
      [](auto& in) { in.first.emplace(of_callable::add(*in.kinds, *in.built, 1)); },
      [](auto& in) { in.answer = in.first->host_parameters().fn != nullptr ? "call" : "null"; });
  asked(
      "record", runs({"node::event"}),
      [](auto& in) { in.first.emplace(of_record::add(*in.kinds, *in.built, 1)); },
      [](auto& in) { in.answer = in.first->event() != nullptr ? "event" : "null"; });
  asked(
      "wait", runs({"node::event"}),
      [](auto& in) { in.first.emplace(build(*in.built).add(wait_node(in.kinds->events[0]))); },
      [](auto& in) { in.answer = in.first->event() != nullptr ? "event" : "null"; });
  auto const memory = [](build_stage& in) {
    in.memory.emplace(build(*in.built).add(alloc_node(256)));
    in.first.emplace(in.memory->add(free_node(in.memory->address())));
  };
  asked("alloc", runs({"node::alloc_parameters"}), memory,
        [](auto& in) { in.answer = std::to_string(in.memory->alloc_parameters().bytesize); });
  asked("free", runs({"node::freed"}), memory,
        [](auto& in) { in.answer = in.first->freed() != nullptr ? "address" : "null"; });
  asked(
      "child", runs({"node::embedded"}),
      [](auto& in) {
        in.copy.emplace(in.keeper);
        in.first.emplace(build(*in.built).add(child_node(*in.copy)));
      },
      [](auto& in) { in.answer = in.first->embedded() != nullptr ? "graph" : "null"; });
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
