// SPDX-License-Identifier: Apache-2.0
// Every call of every operation on graphs built by hand, captures, launches and libraries fails
// once.
#include "graph_stages.hpp"

namespace escrow::test {
namespace {

using rows = operations_in<build_stage>;
using step = rows::step;

/// A run of the graph adds so much to the first cell.
step adds(int value) {
  return [=](auto& in) { in.expected = value; };
}
step const one = [](auto& in) { in.build_one(); };
step const clone = [](auto& in) { in.copy.emplace(in.built->clone()); };
step const handle = [](auto& in) { in.answer = in.built->get() != nullptr ? "handle" : "null"; };
step const exec = [](auto& in) { in.exec.emplace(*in.built); };
step const mine = [](auto& in) { in.mine = in.unique_owner(); };
/// Of an operation that moves `mine` into a kind: if it fails then, it is not done again.
auto moving_mine(auto act) {
  return [act](build_stage& in) {
    in.may_lose = true;
    try {
      act(in);
    } catch (std::exception const&) {
      if (in.mine == nullptr) {
        in.expected.reset();
        in.going.clear();
      }
      throw;
    }
  };
}
statements const owners_go_later = {{"*", "if a call for that fails, when the graph is next used"}};
statements const moved_into_kind = {{"*", "what is moved into a kind ends with it"}};

/// The three operations of a kind of node_queries.hpp.
template <class Kind>
void add_kind(rows& add, std::string const& name, char const* functions) {
  auto const expects = [](int way) -> step {
    return [=](build_stage& in) {
      in.at_end = [&in, way] {
        Kind::expect(
            *in.kinds, [&in] { in.run(); }, way);
      };
    };
  };
  step const make = [](auto& in) { in.first.emplace(Kind::add(*in.kinds, *in.built, 1)); };
  add("node, " + name, functions, {expects(1)}, make);
  add("node, " + name + ", changed", runs("node::set"), {make, expects(2)},
      [](auto& in) { Kind::set(*in.kinds, *in.first, 2); });
  add("node, " + name + ", changed in an exec", runs("set"), {make, exec, expects(2)},
      [](auto& in) { Kind::set(*in.kinds, *in.exec, *in.first, 2); });
}

void add_kinds(rows& add) {
  auto const kernels = runs("graph_builder_ref::add kernel_node kernel_node::kernel_node");
  auto const records = runs("graph_builder_ref::add record_node");
  add_kind<of_launch>(add, "kernel", kernels);
  add_kind<of_function>(add, "function", kernels);
  add_kind<of_memset>(add, "memset", runs("graph_builder_ref::add memset_node"));
  add_kind<of_memcpy>(add, "memcpy", runs("graph_builder_ref::add memcpy_node"));
  add_kind<of_callable>(add, "callable", runs("graph_builder_ref::add host_node"));
  add_kind<of_record>(add, "record", records);
  add_kind<of_borrowed_event>(add, "record of a borrowed event", records);
}

void add_attributes(rows& add) {
  step const with_attributes = [](auto& in) {
    launch_config const config{.grid = {4},
                               .attributes = {attribute_of(cudaLaunchAttributeClusterDimension, 2),
                                              attribute_of(cudaLaunchAttributePriority, -1)}};
    auto const kind = kernel_node(in.add, config, in.shared, 4);
    in.first ? in.first->set(kind) : void(in.first.emplace(build(*in.built).add(kind)));
  };
  step const shared_owner = [](auto& in) { in.shared = in.owner(); };
  step const with_clusters = [](auto& in) {
    launch_config const config{
        .grid = {3}, .attributes = {attribute_of(cudaLaunchAttributeClusterDimension, 3)}};
    in.first.emplace(build(*in.built).add(kernel_node(in.add, config, in.cells.data(), 1)));
  };
  add("node, kernel with attributes", runs("graph_builder_ref::add kernel_node"),
      {shared_owner, adds(4)}, with_attributes);
  add("node, kernel with attributes, changed", runs("node::set"),
      {shared_owner, with_clusters, adds(4)}, with_attributes);
}

/// Kinds that cannot be changed.
void add_other_kinds(rows& add) {
  auto const waits = runs("graph_builder_ref::add wait_node");
  add("node, wait", waits, {one},
      [](auto& in) { build(*in.built).add(wait_node(in.kinds->events[0])); });
  add("node, wait for a borrowed event", waits, {one},
      [](auto& in) { build(*in.built).add(wait_node(in.kinds->event_of(0).ref())); });
  add("node, empty", runs("graph_builder_ref::join"), {one},
      [](auto& in) { static_cast<void>(in.first->join()); });
  add("node, join", runs("graph_builder_ref::join"), {one},
      [](auto& in) { static_cast<void>(build(*in.built).join(std::vector<node>{*in.first})); });
  step const alloc = [](auto& in) { in.memory.emplace(build(*in.built).add(alloc_node(256))); };
  step const free = [](auto& in) { in.memory->add(free_node(in.memory->address())); };
  add("node, alloc", runs("graph_builder_ref::add alloc_node"),
      {[=](auto& in) { in.at_end = [=, &in] { free(in); }; }}, alloc);
  add("node, free", runs("graph_builder_ref::add free_node"), {alloc}, free);
  step const child = [](auto& in) {
    in.copy.emplace(*in.worker);
    build(*in.copy).add(kernel_node(in.add, {}, in.owner(), 5));
  };
  step const embed = [](auto& in) { build(*in.built).add(child_node(*in.copy)); };
  step const add_child = [](auto& in) { in.built->add_child(*in.copy); };
  add("node, embedded graph", runs("graph_builder_ref::add child_node"), {child, adds(5)}, embed);
  add("node, child", runs("graph::add_child"), {child, adds(5)}, add_child);
  step const embedded = [=](auto& in) {
    in.first.emplace(build(*in.built).add(child_node(*in.copy)));
  };
  step const another = [](auto& in) {
    in.third.emplace(*in.worker);
    build(*in.third).add(kernel_node(in.add, {}, in.owner(), 7));
  };
  step const seen = [](auto& in) { in.sees_owners = true; };
  add("child, changed", runs("node::set"), {child, embedded, another, adds(7)}, [](auto& in) {
    in.first->set(child_node(*in.third));
  }).stated = {{"*", "the child runs the other graph, but may not be registered"}};
  add("child, changed in an exec", runs("set"), {child, embedded, another, exec, adds(7)},
      [](auto& in) { escrow::set(*in.exec, *in.first, child_node(*in.third)); });
  step const shared = [](auto& in) { in.shared = in.owner(); };
  step const inside = [](auto& in) {
    in.first = in.first->node_of(nodes_of(embedded_in(*in.first))[0]);
  };
  step const set_inside = [](auto& in) { in.first->set(kernel_node(in.add, {}, in.shared, 9)); };
  add("child, a node in it changed", runs("node::set"),
      {child, embedded, inside, shared, adds(9), seen}, set_inside);
  add("child, a node in it cloned", runs("graph::clone"),
      {child, embedded, inside, shared, set_inside, [](auto& in) { in.copy.reset(); }, adds(9),
       seen},
      clone);
  step const neighbour = [](auto& in) { static_cast<void>(in.first->join()); };
  add("node, its predecessors", runs("node::predecessors"), {one, neighbour}, [](auto& in) {
    in.answer = std::to_string(nodes_in(*in.built).back().predecessors().size());
  });
  add("node, its successors", runs("node::successors"), {one, neighbour},
      [](auto& in) { in.answer = std::to_string(in.first->successors().size()); });
  add("node, its kind", runs("node::kind"), {one},
      [](auto& in) { in.answer = in.first->kind().has_owner() ? "an owner" : "no owner"; });
  add("node, its kind added", runs("graph_builder_ref::add"), {one, adds(2)},
      [](auto& in) { build(*in.built).add(in.first->kind()); });
  add("node, disabled in an exec", runs("set_enabled"), {one, exec, adds(0)},
      [](auto& in) { set_enabled(*in.exec, *in.first, false); });
  add("node, whether it is enabled", runs("is_enabled"), {one, exec, adds(1)},
      [](auto& in) { in.answer = is_enabled(*in.exec, *in.first) ? "yes" : "no"; });
  add("node, embedded graph beside memory", runs("graph_builder_ref::add"),
      {child, adds(5), alloc, free}, embed);
  add("node, child beside memory", runs("graph::add_child"), {child, adds(5), alloc, free},
      add_child);
  step const without_edge = [](auto& in) {
    build(*in.built).add(kernel_node(in.add, {}, in.cells.data(), 1));
  };
  add("node, edge", runs("node::after"), {one, without_edge, adds(2)},
      [](auto& in) { in.first->after(nodes_in(*in.built).back()); });
}

void add_conditions(rows& add) {
  step const condition = [](auto& in) { in.looked_at.emplace(build(*in.built).make_condition(1)); };
  step const body = [](auto& in) {
    in.body.emplace(build(*in.built).add(if_node(*in.looked_at)).body());
  };
  add("condition, made", runs("graph_builder_ref::make_condition"), {}, condition);
  add("node, if", runs("graph_builder_ref::add if_node"), {condition}, body);
  add("node, if and else", runs("graph_builder_ref::add if_else_node"), {condition}, [](auto& in) {
    in.body.emplace(build(*in.built).add(if_else_node(*in.looked_at)).otherwise());
  });
  add("node, while", runs("graph_builder_ref::add while_node"), {condition},
      [](auto& in) { in.body.emplace(build(*in.built).add(while_node(*in.looked_at)).body()); });
  add("node, switch", runs("graph_builder_ref::add switch_node"), {condition}, [](auto& in) {
    in.body.emplace(build(*in.built).add(switch_node(*in.looked_at, 3)).bodies().front());
  });
  add("node, in a body", runs("graph_builder_ref::add"), {condition, body, mine, adds(1)},
      moving_mine([](auto& in) { in.body->add(kernel_node(in.add, {}, std::move(in.mine), 1)); }))
      .stated = moved_into_kind;
  step const owner_in_one = [](build_stage& in) {
    conditional_node const made = build(*in.built).add(if_node(*in.looked_at));
    in.first.emplace(made);
    made.body().add(kernel_node(in.add, {}, in.owner(), 1));
    in.going = {0};
  };
  add("node, conditional, destroyed", runs("node::destroy"), {condition, owner_in_one},
      [](auto& in) { in.first->destroy(); })
      .stated = owners_go_later;
  step const in_body = [](auto& in) { in.body->add(kernel_node(in.add, {}, in.owner(), 1)); };
  add("body, handle", runs("body_graph::get"), {condition, body, in_body, adds(1)},
      [](auto& in) { in.answer = in.body->get() != nullptr ? "body" : "null"; });
  add("exec, of a graph with a body", runs("graph_exec::graph_exec"),
      {condition, body, in_body, adds(1)}, exec);
}

/// Owners that nodes keep.
void add_owners(rows& add) {
  step const owned = [](build_stage& in) {
    in.build_one();
    in.mine = in.unique_owner();
    in.sees_owners = true;
  };
  auto const going = [](build_stage& in) { in.going = {0}; };
  add("owner, added", runs("graph_builder_ref::add"), {owned, adds(11)}, moving_mine([](auto& in) {
        build(*in.built).add(kernel_node(in.add, {}, std::move(in.mine), 10));
      }))
      .stated = moved_into_kind;
  add("owner, changed", runs("node::set"), {owned, adds(10), going},
      moving_mine([](auto& in) { in.first->set(kernel_node(in.add, {}, std::move(in.mine), 10)); }))
      .stated = moved_into_kind;
  step const shared = [](auto& in) { in.shared = in.owner(); };
  add("owner, shared, added", runs("graph_builder_ref::add"), {owned, shared, adds(11)},
      [](auto& in) { build(*in.built).add(kernel_node(in.add, {}, in.shared, 10)); });
  add("owner, shared, changed", runs("node::set"), {owned, shared, adds(10), going},
      [](auto& in) { in.first->set(kernel_node(in.add, {}, in.shared, 10)); });
  step const another = [](auto& in) {
    build(*in.built).add(kernel_node(in.add, {}, in.owner(), 10));
  };
  add("owner, its node destroyed", runs("node::destroy"), {owned, adds(10), another, going},
      [](auto& in) { in.first->destroy(); })
      .stated = owners_go_later;
  add("owner, changed in an exec", runs("set"), {owned, exec, adds(10)}, moving_mine([](auto& in) {
        escrow::set(*in.exec, *in.first, kernel_node(in.add, {}, std::move(in.mine), 10));
      }))
      .stated = moved_into_kind;
  add("owner, shared, changed in an exec", runs("set"), {owned, exec, shared, adds(10)},
      [](auto& in) { escrow::set(*in.exec, *in.first, kernel_node(in.add, {}, in.shared, 10)); });
  add("exec, made of owners", runs("graph_exec::graph_exec"), {owned, adds(1)}, exec);
  step const other_graph = [](auto& in) {
    in.copy.emplace(*in.worker);
    build(*in.copy).add(kernel_node(in.add, {}, in.owner(), 7));
  };
  add("exec, updated to owners", runs("graph_exec::update"), {owned, exec, other_graph, adds(7)},
      [](auto& in) { in.exec->update(*in.copy); });
  add("graph with owners, cloned", runs("graph::clone"), {owned}, clone);
  add("graph with owners, ended", runs("graph::~graph"), {owned, going},
      [](auto& in) { in.built.reset(); });
  add("graph with owners, detached", runs("graph::detach"), {owned}, [](auto& in) {
    in.plain.reset(in.built->detach());
    in.built.reset();
  });
  add("graph with owners, its handle", runs("graph::get"), {owned}, handle);
  add("graph with owners, what it holds", runs("graph::held"), {owned},
      [](auto& in) { in.answer = std::to_string(in.built->held().owners); });
  add("exec with owners, what it holds", runs("graph_exec::held"), {owned, exec},
      [](auto& in) { in.answer = std::to_string(in.exec->held().owners); });
  step const expect_run = [](build_stage& in) {
    in.at_end = [&in] { EXPECT_EQ(in.cells.load(), 1); };
  };
  add("exec with owners, launched", runs("graph_exec::launch"), {owned, exec, expect_run},
      [](auto& in) { in.exec->launch(in.one); });
  step const in_flight = [](build_stage& in) {
    in.first.emplace(build(*in.built).add(
        kernel_node(kernel(kernel_address(kernel_id::wait_flag)), {}, in.flag.get())));
    in.first->add(kernel_node(in.add, {}, in.owner(), 1));
    in.exec.emplace(*in.built);
    in.exec->launch(in.one);
    in.built.reset();
  };
  add("exec with owners, ended in flight", runs("graph_exec::~graph_exec"), {owned, in_flight},
      [](auto& in) { in.exec.reset(); });
  step const capturing = [](auto& in) { in.begin_capture(in.other); };
  add("exec with owners, ended during a capture", runs("graph_exec::~graph_exec"),
      {owned, exec, capturing}, [](auto& in) { in.exec.reset(); });
}

void add_graphs(rows& add) {
  auto const makes = runs("graph::graph");
  add("graph, made", makes, {}, [](auto& in) { in.copy.emplace(); });
  add("graph, made for a deleter", makes, {}, [](auto& in) { in.copy.emplace(*in.worker); });
  add("graph, taken over", makes, {[](auto& in) { in.plain = make_graph(); }}, [](auto& in) {
    in.copy.emplace(in.plain.release());
  }).stated = {{"*", "the graph is destroyed if it cannot be taken over"}};
  add("graph, empty, cloned", runs("graph::clone"), {}, clone);
  add("graph, empty, its handle", runs("graph::get"), {}, handle);
  add("graph, written", runs("graph::write_dot"), {one},
      [](auto& in) { in.built->write_dot("/dev/null"); });
  step const begin = [](auto& in) { in.scope.emplace(in.one); };
  step const work = [](auto& in) { must(launch_add(in.one, in.cells.data(), 3)); };
  add("capture, begun", runs("capture_scope::capture_scope"), {}, begin);
  add("capture, ended", runs("capture_scope::end"), {begin, work}, [](auto& in) {
    in.copy.emplace(in.scope->end());
    in.scope.reset();
  }).stated = {{"*", "after a failed end() the capture is over and the graph is gone"}};
  add("capture, dropped", runs("capture_scope::~capture_scope"), {begin, work},
      [](auto& in) { in.scope.reset(); });
  step const begin_plainly = [](auto& in) {
    must(cudaStreamBeginCapture(in.one, cudaStreamCaptureModeThreadLocal));
  };
  add("capture of a plain call, ended", runs("end_capture"), {begin_plainly, work}, [](auto& in) {
    try {
      in.copy.emplace(end_capture(in.one));
    } catch (...) {  // of a stream that cannot be asked it goes on
      owned_graph left;
      if (cudaStreamEndCapture(in.one, left.out()) != cudaSuccess) cudaGetLastError();
      throw;
    }
  }).stated = {{"*", "if the capture could not be ended, it is over and its graph gone"}};
  add("capture, as a call", runs("capture"), {}, [](auto& in) {
    in.copy.emplace(escrow::capture(in.one, [&in](stream_ref on) {
      escrow::check(launch_add(on.get(), in.cells.data(), 3), "cudaLaunchKernel");
    }));
  });
  add("capture, of work that throws", runs("capture"), {}, [](auto& in) {
    try {
      static_cast<void>(escrow::capture(in.one, [](stream_ref) { throw std::logic_error("no"); }));
    } catch (std::logic_error const& thrown) {
      in.answer = thrown.what();
    }
  });
}

/// A launch that keeps its arguments with the stage's deleter.
template <class Argument>
void launch_keeping(build_stage& in, kernel const& launched, Argument&& argument) {
  launch(in.one, launched, {.deleter = in.worker.get()}, std::forward<Argument>(argument), 4);
}

step const expect_added = [](build_stage& in) {
  in.at_end = [&in] { EXPECT_EQ(in.cells.load(), 4); };
};

void add_launches(rows& add) {
  auto const launches = runs("launch");
  step const busy = [](auto& in) { must(launch_wait_flag(in.one, in.flag.get())); };
  step const launch_mine = [](auto& in) { launch_keeping(in, in.add, std::move(in.mine)); };
  add("launch", launches, {busy, expect_added, mine}, launch_mine);
  add("launch, with nothing to keep", launches, {busy, expect_added},
      [](auto& in) { launch(in.one, in.add, {}, in.cells.data(), 4); });
  add("launch, of a shared argument", launches,
      {busy, expect_added, [](auto& in) { in.shared = in.owner(); }},
      [](auto& in) { launch_keeping(in, in.add, in.shared); });
  step const capturing = [](auto& in) {
    in.may_lose = true;
    in.scope.emplace(in.one);
  };
  add("launch, in a capture", launches, {mine, capturing}, launch_mine).stated = {
      {"*", "in a capture, an argument is moved from before the launch"}};
}

void add_libraries(rows& add) {
  step const load = [](auto& in) { in.loaded.emplace(library::load(library_code(), *in.worker)); };
  step const find = [](auto& in) { in.found.emplace(in.loaded->find("library_add")); };
  step const drop = [](auto& in) { in.loaded.reset(); };
  step const no_poll = [](auto& in) { in.polls_when_seen = false; };
  add("library, loaded", runs("library::load"), {}, load);
  add("library, loaded from a file", runs("library::load_file"),
      {[](auto&) { provide_library_file("faults.cubin"); }},
      [](auto& in) { in.loaded.emplace(library::load_file("faults.cubin", *in.worker)); });
  add("library, searched", runs("library::find"), {load}, find);
  add("library, its kernel launched", runs("launch"), {load, find, drop, expect_added},
      [](auto& in) { launch_keeping(in, *in.found, in.cells.data()); });
  add("library, its kernel in a node", runs("graph_builder_ref::add"), {load, find, drop, adds(4)},
      [](auto& in) { build(*in.built).add(kernel_node(*in.found, {}, in.cells.data(), 4)); });
  add("library, unloaded", runs("library::load"), {load, no_poll, drop}, poll).served_otherwise =
      at_next_poll;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall,
                         testing::ValuesIn(rows::of({add_kinds, add_attributes, add_other_kinds,
                                                     add_conditions, add_owners, add_graphs,
                                                     add_launches, add_libraries})),
                         name_of);

}  // namespace
}  // namespace escrow::test
