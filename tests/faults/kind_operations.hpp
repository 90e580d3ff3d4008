// Nodes of every kind: added, changed in a graph, and changed in an exec.
#pragma once

#include "build_stage.hpp"

namespace escrow::test {

/// The three operations of a kind of changeable_kinds.hpp.
template <class Kind>
void add_kind(operations_in<build_stage>& all, std::string const& name,
              std::vector<std::string> adds, std::vector<std::string> sets,
              std::vector<std::string> exec_sets) {
  auto const expect = [](build_stage& in, int way) {
    in.at_end = [&in, way] {
      Kind::expect(
          *in.kinds, [&in] { in.run(); }, way);
    };
  };
  auto const with_node = [](build_stage& in) {
    in.first.emplace(Kind::add(*in.kinds, *in.built, 1));
  };
  all.add(
      "node, " + name, std::move(adds), [=](auto& in) { expect(in, 1); }, with_node);
  all.add(
      "node, " + name + ", changed", std::move(sets),
      [=](auto& in) {
        with_node(in);
        expect(in, 2);
      },
      [](auto& in) { Kind::set(*in.kinds, *in.first, 2); });
  all.add(
      "node, " + name + ", changed in an exec", std::move(exec_sets),
      [=](auto& in) {
        with_node(in);
        in.exec.emplace(*in.built);
        expect(in, 2);
      },
      [](auto& in) { Kind::set(*in.kinds, *in.exec, *in.first, 2); });
}

inline void add_kinds(operations_in<build_stage>& all) {
  add_kind<of_launch>(all, "kernel", runs({"insertion_point::launch"}), runs({"node::set_launch"}),
                      runs({"graph_exec::set_launch"}));
  add_kind<of_function>(all, "function", runs({"insertion_point::launch"}),
                        runs({"node::set_launch"}), runs({"graph_exec::set_launch"}));
  add_kind<of_memset>(all, "memset", runs({"insertion_point::memset"}), runs({"node::set_memset"}),
                      runs({"graph_exec::set_memset"}));
  add_kind<of_memcpy>(all, "memcpy", runs({"insertion_point::memcpy"}), runs({"node::set_memcpy"}),
                      runs({"graph_exec::set_memcpy"}));
  add_kind<of_callable>(all, "callable", runs({"insertion_point::call"}), runs({"node::set_call"}),
                        runs({"graph_exec::set_call"}));
  add_kind<of_c_function>(all, "c function", runs({"insertion_point::call"}),
                          runs({"node::set_call"}), runs({"graph_exec::set_call"}));
  add_kind<of_record>(all, "record", runs({"insertion_point::record"}), runs({"node::set_event"}),
                      runs({"graph_exec::set_event"}));
  add_kind<of_borrowed_event>(all, "record of a borrowed event", runs({"insertion_point::record"}),
                              runs({"node::set_event"}), runs({"graph_exec::set_event"}));
}

/// Kinds that cannot be changed.
inline void add_other_kinds(operations_in<build_stage>& all) {
  auto const one = [](build_stage& in) { in.build_one(); };
  all.add("node, wait", runs({"insertion_point::wait"}), one,
          [](auto& in) { in.built->wait(in.kinds->events[0]); });
  all.add("node, wait for a borrowed event", runs({"insertion_point::wait"}), one,
          [](auto& in) { in.built->wait(in.kinds->events[0].ref()); });
  all.add("node, empty", runs({"insertion_point::join"}), one,
          [](auto& in) { static_cast<void>(in.first->join()); });
  all.add("node, join", runs({"insertion_point::join"}), one,
          [](auto& in) { static_cast<void>(in.built->join(std::vector<node>{*in.first})); });
  all.add(
      "node, alloc", runs({"insertion_point::alloc"}), [](auto&) {},
      [](auto& in) {
        in.memory.emplace(in.built->alloc(256));
        in.at_end = [&in] { in.memory->free(*in.memory); };
      });
  auto const alloc = [](build_stage& in) { in.memory.emplace(in.built->alloc(256)); };
  all.add("node, free", runs({"insertion_point::free"}), alloc,
          [](auto& in) { in.memory->free(*in.memory); });
  all.add("node, free of an address", runs({"insertion_point::free"}), alloc,
          [](auto& in) { in.memory->free(in.memory->address()); });
  auto const with_child = [](build_stage& in) {
    in.copy.emplace(in.keeper);
    in.copy->launch(in.add, {}, in.owner(), 5);
    in.expected = 5;
  };
  all.add("node, embedded graph", runs({"insertion_point::embed"}), with_child,
          [](auto& in) { in.built->embed(*in.copy); });
  all.add("node, child", runs({"graph::add_child"}), with_child,
          [](auto& in) { in.built->add_child(*in.copy); });
  auto const beside_memory = [=](build_stage& in) {
    with_child(in);
    in.memory.emplace(in.built->alloc(256));
    in.memory->free(*in.memory);
  };
  all.add("node, embedded graph beside memory", runs({"insertion_point::embed"}), beside_memory,
          [](auto& in) { in.built->embed(*in.copy); });
  all.add("node, child beside memory", runs({"graph::add_child"}), beside_memory,
          [](auto& in) { in.built->add_child(*in.copy); });
  all.add(
      "node, edge", runs({"node::after"}),
      [=](auto& in) {
        one(in);
        in.built->launch(in.add, {}, in.cells.data(), 1);
        in.expected = 2;
      },
      [](auto& in) { in.first->after(in.built->nodes().back()); });
}

inline void add_conditions(operations_in<build_stage>& all) {
  auto const with_condition = [](build_stage& in) {
    in.looked_at.emplace(in.built->make_condition(1));
  };
  all.add(
      "condition, made", runs({"insertion_point::make_condition"}), [](auto&) {}, with_condition);
  all.add("node, if", runs({"insertion_point::if_then"}), with_condition,
          [](auto& in) { in.body.emplace(in.built->if_then(*in.looked_at).body()); });
  all.add("node, if and else", runs({"insertion_point::if_else"}), with_condition,
          [](auto& in) { in.body.emplace(in.built->if_else(*in.looked_at).otherwise()); });
  all.add("node, while", runs({"insertion_point::while_loop"}), with_condition,
          [](auto& in) { in.body.emplace(in.built->while_loop(*in.looked_at).body()); });
  all.add("node, switch", runs({"insertion_point::switch_to"}), with_condition, [](auto& in) {
    in.body.emplace(in.built->switch_to(*in.looked_at, 3).bodies().front());
  });
  auto const with_body = [=](build_stage& in) {
    with_condition(in);
    in.body.emplace(in.built->if_then(*in.looked_at).body());
  };
  all.add(
      "node, in a body", runs({"insertion_point::launch"}),
      [=](auto& in) {
        with_body(in);
        in.mine = in.unique_owner();
        in.expected = 1;
      },
      [](auto& in) { in.body->launch(in.add, {}, std::move(in.mine), 1); });
  auto const with_node_in_body = [=](build_stage& in) {
    with_body(in);
    in.body->launch(in.add, {}, in.owner(), 1);
    in.expected = 1;
  };
  all.add("body, handle", runs({"body_graph::get"}), with_node_in_body,
          [](auto& in) { in.answer = in.body->get() != nullptr ? "body" : "null"; });
  all.add("body, nodes and edges", runs({"body_graph::nodes"}), with_node_in_body,
          [](auto& in) { in.answer = std::to_string(in.body->nodes().size()); });
  all.add("body, edges", runs({"body_graph::edges"}), with_node_in_body,
          [](auto& in) { in.answer = std::to_string(in.body->edges().size()); });
  all.add("exec, of a graph with a body", runs({"graph_exec::graph_exec"}), with_node_in_body,
          [](auto& in) { in.exec.emplace(*in.built); });
}

}  // namespace escrow::test
