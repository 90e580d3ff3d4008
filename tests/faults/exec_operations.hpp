// Operations on graphs, execs and hoisted references.
#pragma once

#include <escrow/nodes.hpp>

#include "exec_stage.hpp"
#include "hoist_operations.hpp"

namespace escrow::test {

inline void add_instantiates(operations_in<exec_stage>& all) {
  auto const of_source = [](auto& in) { in.exec.emplace(*in.source); };
  all.add(
      "instantiate", runs({"graph_exec::graph_exec"}), [](auto&) {}, of_source);
  all.add(
      "instantiate by handle", runs({"graph_exec::graph_exec"}), [](auto&) {},
      [](auto& in) { in.exec.emplace(in.source->get()); });
  all.add(
      "instantiate with a bundle", runs({"graph_exec::graph_exec"}),
      [](auto& in) { in.rival.emplace(*in.source); }, of_source);
  all.add(
      "instantiate with a rival in flight", runs({"graph_exec::graph_exec"}),
      [](auto& in) {
        in.rival.emplace(*in.source);
        in.launch(*in.rival, in.other);
      },
      of_source);
  all.add(
      "instantiate a clone", runs({"graph_exec::graph_exec"}),
      [](auto& in) { in.copy.emplace(in.source->clone()); },
      [](auto& in) { in.exec.emplace(*in.copy); });
  all.add(
      "instantiate a parent", runs({"graph_exec::graph_exec"}),
      [](auto& in) {
        in.second.emplace(in.captured(2));
        in.parent.emplace();
        in.parent->add_child(*in.source);
        in.parent->add_child(*in.second);
      },
      [](auto& in) { in.exec.emplace(*in.parent); });
  all.add(
      "instantiate a plain parent", runs({"graph_exec::graph_exec"}),
      [](auto& in) {
        in.plain = make_graph();
        test::add_child(in.plain, in.source->get());
        add_kernel(in.plain, tiny_call());
      },
      [](auto& in) { in.exec.emplace(in.plain.get()); });
  all.add(
      "instantiate after more was captured", runs({"graph_exec::graph_exec"}),
      [](auto& in) {
        in.rival.emplace(*in.source);
        in.owners.emplace_back();
        in.worker->retire(in.source->get(), in.owners.back().owner());
      },
      of_source);
}

inline void add_launches(operations_in<exec_stage>& all) {
  all.add(
      "launch", runs({"graph_exec::launch"}), [](auto& in) { in.exec.emplace(*in.source); },
      [](auto& in) { in.launch(*in.exec, in.one); });
  all.add(
      "launch again", runs({"graph_exec::launch"}),
      [](auto& in) {
        in.exec.emplace(*in.source);
        in.launch(*in.exec, in.one);
      },
      [](auto& in) { in.launch(*in.exec, in.other); });
  all.add(
      "launch behind a rival", runs({"graph_exec::launch"}),
      [](auto& in) {
        in.exec.emplace(*in.source);
        in.rival.emplace(*in.source);
        in.launch(*in.rival, in.other);
      },
      [](auto& in) { in.launch(*in.exec, in.one); });
  all.add(
      "launch behind a rival that ended", runs({"graph_exec::launch"}),
      [](auto& in) {
        in.exec.emplace(*in.source);
        in.rival.emplace(in.source->clone());
        in.launch(*in.rival, in.other);
        in.rival.reset();
      },
      [](auto& in) { in.launch(*in.exec, in.one); });
  all.add(
      "upload", runs({"graph_exec::upload"}), [](auto& in) { in.exec.emplace(*in.source); },
      [](auto& in) { in.exec->upload(in.one); });
}

inline void add_updates(operations_in<exec_stage>& all) {
  auto const to_second = [](auto& in) { in.exec->update(*in.second); };
  auto const with_both = [](auto& in) {
    in.second.emplace(in.captured(2));
    in.exec.emplace(*in.source);
  };
  all.add("update", runs({"graph_exec::update"}), with_both, to_second);
  all.add("update by handle", runs({"graph_exec::update"}), with_both,
          [](auto& in) { in.exec->update(in.second->get()); });
  all.add(
      "update to a bundle", runs({"graph_exec::update"}),
      [=](auto& in) {
        with_both(in);
        in.rival.emplace(*in.second);
        in.launch(*in.rival, in.other, 1);
      },
      to_second);
  all.add(
      "update in flight", runs({"graph_exec::update"}),
      [=](auto& in) {
        with_both(in);
        in.launch(*in.exec, in.one);
      },
      to_second);
  all.add(
      "update to the same in flight", runs({"graph_exec::update"}),
      [](auto& in) {
        in.exec.emplace(*in.source);
        in.launch(*in.exec, in.one);
      },
      [](auto& in) { in.exec->update(*in.source); });
  all.add(
      "update to a clone in flight", runs({"graph_exec::update"}),
      [](auto& in) {
        in.copy.emplace(in.source->clone());
        in.exec.emplace(*in.source);
        in.launch(*in.exec, in.one);
      },
      [](auto& in) { in.exec->update(*in.copy); });
}

inline void add_ends(operations_in<exec_stage>& all) {
  auto const ending = [](auto& in) { in.exec.reset(); };
  all.add(
      "destroy idle", runs({"graph_exec::~graph_exec"}),
      [](auto& in) { in.exec.emplace(*in.source); }, ending);
  all.add(
      "destroy in flight", runs({"graph_exec::~graph_exec"}),
      [](auto& in) {
        in.exec.emplace(*in.source);
        in.launch(*in.exec, in.one);
      },
      ending);
  all.add(
      "destroy in flight with a rival", runs({"graph_exec::~graph_exec"}),
      [](auto& in) {
        in.exec.emplace(*in.source);
        in.rival.emplace(*in.source);
        in.launch(*in.rival, in.other);
        in.launch(*in.exec, in.one);
      },
      ending);
  all.add(
      "destroy the graph", runs({"graph::~graph"}),
      [](auto& in) {
        in.exec.emplace(*in.source);
        in.launch(*in.exec, in.one);
      },
      [](auto& in) {
        in.source_holds = false;
        in.source.reset();
      });
}

inline void add_copies(operations_in<exec_stage>& all) {
  auto const cloning = [](auto& in) { in.copy.emplace(in.source->clone()); };
  all.add(
      "clone", runs({"graph::clone"}), [](auto&) {}, cloning);
  all.add(
      "clone with a bundle", runs({"graph::clone"}), [](auto& in) { in.exec.emplace(*in.source); },
      cloning);
  all.add(
      "clone a parent", runs({"graph::clone"}),
      [](auto& in) {
        in.parent.emplace();
        in.parent->add_child(*in.source);
      },
      [](auto& in) { in.copy.emplace(in.parent->clone()); });
  all.add(
      "add a child", runs({"graph::add_child"}),
      [](auto& in) {
        in.parent.emplace();
        add_kernel(in.parent->get(), tiny_call());
      },
      [](auto& in) { in.parent->add_child(*in.source); });
  all.add(
      "add a parent as child", runs({"graph::add_child"}),
      [](auto& in) {
        in.copy.emplace();
        in.copy->add_child(*in.source);
        in.parent.emplace();
      },
      [](auto& in) { in.parent->add_child(*in.copy); });
}

/// Execs with conditional nodes, which end only after their launches and uploads.
inline void add_conditionals(operations_in<exec_stage>& all) {
  auto const making = [](auto& in) {
    in.parent.emplace();
    conditional_node const chosen =
        build(*in.parent).add(if_node(build(*in.parent).make_condition(1)));
    add_kernel(chosen.body().get(), tiny_call());
  };
  auto const instantiating = [](auto& in) { in.exec.emplace(*in.parent); };
  auto const launching = [](auto& in) { in.exec->launch(in.other); };
  auto const ending = [](auto& in) { in.exec.reset(); };
  auto const with_exec = [=](auto& in) {
    making(in);
    instantiating(in);
  };
  auto const in_flight = [=](auto& in) {
    with_exec(in);
    launching(in);
  };
  all.add("instantiate with conditions", runs({"graph_exec::graph_exec"}), making, instantiating);
  all.add(
      "instantiate with conditions alone", runs({"graph_exec::graph_exec"}),
      [=](auto& in) {
        making(in);
        in.source_holds = false;
        in.source.reset();
      },
      instantiating);
  all.add("update with conditions", runs({"graph_exec::update"}), in_flight,
          [](auto& in) { in.exec->update(*in.parent); });
  all.add("launch with conditions", runs({"graph_exec::launch"}), with_exec, launching);
  all.add("destroy with conditions", runs({"graph_exec::~graph_exec"}), in_flight, ending);
  auto const uploading = [](auto& in) { in.exec->upload(in.other); };
  all.add("upload with conditions", runs({"graph_exec::upload"}), with_exec, uploading);
  auto const uploaded = [=](auto& in) {
    in_flight(in);
    in.exec->upload(in.one);
  };
  all.add("upload again with conditions", runs({"graph_exec::upload"}), uploaded, uploading);
  all.add("destroy with conditions after an upload", runs({"graph_exec::~graph_exec"}), uploaded,
          ending);
}

/// All of them, each of which can end while launches are in flight, or execs first.
inline std::vector<operation> const& exec_operations() {
  static std::vector<operation> const all = [] {
    operations_in<exec_stage> joined;
    add_instantiates(joined);
    add_launches(joined);
    add_updates(joined);
    add_ends(joined);
    add_conditionals(joined);
    add_copies(joined);
    add_hoists(joined);
    add_reclaimed_holds(joined);
    std::vector<operation> result = joined.all();
    for (operation& each : result) each.ways_to_end = 2;
    return result;
  }();
  return all;
}

}  // namespace escrow::test
