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
  add_kind<of_launch>(all, "kernel", runs({"graph_builder_ref::add", "kernel_node"}),
                      runs({"node::set"}), runs({"set"}));
  add_kind<of_function>(all, "function", runs({"graph_builder_ref::add", "kernel_node"}),
                        runs({"node::set"}), runs({"set"}));
  add_kind<of_memset>(all, "memset", runs({"graph_builder_ref::add", "memset_node"}),
                      runs({"node::set"}), runs({"set"}));
  add_kind<of_memcpy>(all, "memcpy", runs({"graph_builder_ref::add", "memcpy_node"}),
                      runs({"node::set"}), runs({"set"}));
  add_kind<of_callable>(all, "callable", runs({"graph_builder_ref::add", "host_node"}),
                        runs({"node::set"}), runs({"set"}));
  add_kind<of_c_function>(all, "c function", runs({"graph_builder_ref::add", "host_node"}),
                          runs({"node::set"}), runs({"set"}));
  add_kind<of_record>(all, "record", runs({"graph_builder_ref::add", "record_node"}),
                      runs({"node::set"}), runs({"set"}));
  add_kind<of_borrowed_event>(all, "record of a borrowed event",
                              runs({"graph_builder_ref::add", "record_node"}), runs({"node::set"}),
                              runs({"set"}));
}

/// Kinds that cannot be changed.
inline void add_other_kinds(operations_in<build_stage>& all) {
  auto const one = [](build_stage& in) { in.build_one(); };
  all.add("node, wait", runs({"graph_builder_ref::add", "wait_node"}), one,
          [](auto& in) { build(*in.built).add(wait_node(in.kinds->events[0])); });
  all.add("node, wait for a borrowed event", runs({"graph_builder_ref::add", "wait_node"}), one,
          [](auto& in) { build(*in.built).add(wait_node(in.kinds->event_of(0).ref())); });
  all.add("node, empty", runs({"graph_builder_ref::join"}), one,
          [](auto& in) { static_cast<void>(in.first->join()); });
  all.add("node, join", runs({"graph_builder_ref::join"}), one,
          [](auto& in) { static_cast<void>(build(*in.built).join(std::vector<node>{*in.first})); });
  all.add(
      "node, alloc", runs({"graph_builder_ref::add", "alloc_node"}), [](auto&) {},
      [](auto& in) {
        in.memory.emplace(build(*in.built).add(alloc_node(256)));
        in.at_end = [&in] { in.memory->add(free_node(in.memory->address())); };
      });
  auto const alloc = [](build_stage& in) {
    in.memory.emplace(build(*in.built).add(alloc_node(256)));
  };
  all.add("node, free", runs({"graph_builder_ref::add", "free_node"}), alloc,
          [](auto& in) { in.memory->add(free_node(in.memory->address())); });
  auto const with_child = [](build_stage& in) {
    in.copy.emplace(in.keeper);
    build(*in.copy).add(kernel_node(in.add, {}, in.owner(), 5));
    in.expected = 5;
  };
  all.add("node, embedded graph", runs({"graph_builder_ref::add", "child_node"}), with_child,
          [](auto& in) { build(*in.built).add(child_node(*in.copy)); });
  all.add("node, child", runs({"graph::add_child"}), with_child,
          [](auto& in) { in.built->add_child(*in.copy); });
  auto const beside_memory = [=](build_stage& in) {
    with_child(in);
    in.memory.emplace(build(*in.built).add(alloc_node(256)));
    in.memory->add(free_node(in.memory->address()));
  };
  all.add("node, embedded graph beside memory", runs({"graph_builder_ref::add"}), beside_memory,
          [](auto& in) { build(*in.built).add(child_node(*in.copy)); });
  all.add("node, child beside memory", runs({"graph::add_child"}), beside_memory,
          [](auto& in) { in.built->add_child(*in.copy); });
  all.add(
      "node, edge", runs({"node::after"}),
      [=](auto& in) {
        one(in);
        build(*in.built).add(kernel_node(in.add, {}, in.cells.data(), 1));
        in.expected = 2;
      },
      [](auto& in) { in.first->after(nodes_in(*in.built).back()); });
}

inline void add_conditions(operations_in<build_stage>& all) {
  auto const with_condition = [](build_stage& in) {
    in.looked_at.emplace(build(*in.built).make_condition(1));
  };
  all.add(
      "condition, made", runs({"graph_builder_ref::make_condition"}), [](auto&) {}, with_condition);
  all.add("node, if", runs({"graph_builder_ref::add", "if_node"}), with_condition,
          [](auto& in) { in.body.emplace(build(*in.built).add(if_node(*in.looked_at)).body()); });
  all.add("node, if and else", runs({"graph_builder_ref::add", "if_else_node"}), with_condition,
          [](auto& in) {
            in.body.emplace(build(*in.built).add(if_else_node(*in.looked_at)).otherwise());
          });
  all.add(
      "node, while", runs({"graph_builder_ref::add", "while_node"}), with_condition,
      [](auto& in) { in.body.emplace(build(*in.built).add(while_node(*in.looked_at)).body()); });
  all.add("node, switch", runs({"graph_builder_ref::add", "switch_node"}), with_condition,
          [](auto& in) {
            in.body.emplace(build(*in.built).add(switch_node(*in.looked_at, 3)).bodies().front());
          });
  auto const with_body = [=](build_stage& in) {
    with_condition(in);
    in.body.emplace(build(*in.built).add(if_node(*in.looked_at)).body());
  };
  all.add(
      "node, in a body", runs({"graph_builder_ref::add"}),
      [=](auto& in) {
        with_body(in);
        in.mine = in.unique_owner();
        in.expected = 1;
      },
      [](auto& in) { in.body->add(kernel_node(in.add, {}, std::move(in.mine), 1)); });
  auto const with_node_in_body = [=](build_stage& in) {
    with_body(in);
    in.body->add(kernel_node(in.add, {}, in.owner(), 1));
    in.expected = 1;
  };
  all.add("body, handle", runs({"body_graph::get"}), with_node_in_body,
          [](auto& in) { in.answer = in.body->get() != nullptr ? "body" : "null"; });
  all.add("exec, of a graph with a body", runs({"graph_exec::graph_exec"}), with_node_in_body,
          [](auto& in) { in.exec.emplace(*in.built); });
}

}  // namespace escrow::test
