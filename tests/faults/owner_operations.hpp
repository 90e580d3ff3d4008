// Owners that nodes keep: added, changed, destroyed; with the graph's handle given out, or not.
#pragma once

#include "build_stage.hpp"

namespace escrow::test {

inline std::string where_of(bool is_exposed) {
  return is_exposed ? ", the handle is out" : "";
}

/// A node with an owner, and another owner that is to be taken. Before the handle was given away
/// nothing is on the graph.
inline void build_with_owners(build_stage& in, bool is_exposed) {
  in.build_one();
  in.mine = in.unique_owner();
  if (is_exposed) static_cast<void>(in.built->get());
}

/// Nodes that take owners, or lose theirs.
inline void add_owners(operations_in<build_stage>& all, bool is_exposed) {
  std::string const where = where_of(is_exposed);
  auto const one = [=](build_stage& in) { build_with_owners(in, is_exposed); };
  all.add(
      "owner, added" + where, runs({"graph_builder_ref::add"}),
      [=](auto& in) {
        one(in);
        in.expected = 11;
      },
      [](auto& in) { build(*in.built).add(kernel_node(in.add, {}, std::move(in.mine), 10)); });
  all.add(
      "owner, changed" + where, runs({"node::set"}),
      [=](auto& in) {
        one(in);
        in.expected = 10;
        in.going = {0};
      },
      [](auto& in) { in.first->set(kernel_node(in.add, {}, std::move(in.mine), 10)); });
  all.add(
      "owner, its node destroyed" + where, runs({"node::destroy"}),
      [=](auto& in) {
        one(in);
        in.expected = 10;
        build(*in.built).add(kernel_node(in.add, {}, in.owner(), 10));
        in.going = {0};
      },
      [](auto& in) { in.first->destroy(); });
  all.add(
      "owner, changed in an exec" + where, runs({"set"}),
      [=](auto& in) {
        one(in);
        in.exec.emplace(*in.built);
        in.expected = 10;
      },
      [](auto& in) {
        escrow::set(*in.exec, *in.first, kernel_node(in.add, {}, std::move(in.mine), 10));
      });
}

/// Graphs and execs that have owners.
inline void add_owned_graphs(operations_in<build_stage>& all, bool is_exposed) {
  std::string const where = where_of(is_exposed);
  auto const one = [=](build_stage& in) { build_with_owners(in, is_exposed); };
  auto const exec = [=](build_stage& in) {
    one(in);
    in.exec.emplace(*in.built);
  };
  all.add(
      "exec, made of owners" + where, runs({"graph_exec::graph_exec"}),
      [=](auto& in) {
        one(in);
        in.expected = 1;
      },
      [](auto& in) { in.exec.emplace(*in.built); });
  all.add(
      "exec, updated to owners" + where, runs({"graph_exec::update"}),
      [=](auto& in) {
        exec(in);
        in.copy.emplace(in.keeper);
        build(*in.copy).add(kernel_node(in.add, {}, in.owner(), 7));
        in.expected = 7;
      },
      [](auto& in) { in.exec->update(*in.copy); });
  all.add("graph with owners, cloned" + where, runs({"graph::clone"}), one,
          [](auto& in) { in.copy.emplace(in.built->clone()); });
  all.add(
      "graph with owners, ended" + where, runs({"graph::~graph"}),
      [=](auto& in) {
        one(in);
        in.going = {0};
      },
      [](auto& in) { in.built.reset(); });
  all.add("graph with owners, detached" + where, runs({"graph::detach"}), one, [](auto& in) {
    in.plain.reset(in.built->detach());
    in.built.reset();
  });
  all.add("graph with owners, its handle" + where, runs({"graph::get"}), one,
          [](auto& in) { in.answer = in.built->get() != nullptr ? "handle" : "null"; });
  all.add("graph with owners, what it holds" + where, runs({"graph::held"}), one,
          [](auto& in) { in.answer = std::to_string(in.built->held().owners); });
  all.add("exec with owners, what it holds" + where, runs({"graph_exec::held"}), exec,
          [](auto& in) { in.answer = std::to_string(in.exec->held().owners); });
  all.add(
      "exec with owners, launched" + where, runs({"graph_exec::launch"}),
      [=](auto& in) {
        exec(in);
        in.at_end = [&in] { EXPECT_EQ(in.cells.load(), 1); };
      },
      [](auto& in) { in.exec->launch(in.stream); });
  all.add(
      "exec with owners, ended in flight" + where, runs({"graph_exec::~graph_exec"}),
      [=](auto& in) {
        in.first.emplace(build(*in.built).add(
            kernel_node(kernel(kernel_address(kernel_id::wait_flag)), {}, in.flag.get())));
        in.first->add(kernel_node(in.add, {}, in.owner(), 1));
        in.exec.emplace(*in.built);
        in.exec->launch(in.stream);
        in.built.reset();
      },
      [](auto& in) { in.exec.reset(); });
}

}  // namespace escrow::test
