// SPDX-License-Identifier: Apache-2.0
// Graphs for Python: sharing groups, execs that launch as bare ones, and hoisted graphs.
#include <nanobind/stl/vector.h>

#include <vector>

#include "escrow/core/capture.hpp"
#include "escrow/deleter/deleter.hpp"
#include "escrow/graph/audit.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "escrow/graph/hoist.hpp"
#include "module.hpp"

namespace escrow::python {

namespace {

constexpr double usual_wait = 10.0;

// A function of Python's that is called where the GIL was let go; its result.
class python_call {
 public:
  explicit python_call(nb::callable function) : function_(std::move(function)) {}

  void operator()(gil_let_go& around) {
    gil_let_go::taken const gil(around);
    result = function_();
  }
  nb::object result;

 private:
  nb::callable function_;
};

std::vector<cudaGraph_t> graphs_of(std::vector<nb::object> const& given) {
  std::vector<cudaGraph_t> result;
  for (nb::object const& each : given) result.push_back(graph_of(each));
  return result;
}

// Calls `launch(on, call, most)`, in which `call()` is the function of Python's. Its result.
template <class Launch>
nb::object in_turn(char const* call, nb::handle stream, nb::callable function, double wait_max,
                   Launch const& launch) {
  cudaStream_t const on = stream_of(stream);
  python_call work(std::move(function));
  waiting(call, [&](gil_let_go& around) {
    launch(
        on, [&] { work(around); }, time_of(wait_max, {}));
  });
  return work.result;
}

// CUDA would refuse the launch, and invalidate the capture.
void refuse_capturing(char const* call, cudaStream_t stream) {
  if (usable_capture_of(call, stream).is_none()) return;
  throw usage_error(call, "`stream` is being captured", "launch after the capture");
}

void define_group(nb::module_& to) {
  auto group = nb::borrow<nb::class_<python_group>>(to.attr("Group"));
  group.def(
      "__init__",
      [](python_group* place, std::string const& label, bool streams_outlive_group) {
        sharing_options const options{.label = label,
                                      .streams_outlive_group = streams_outlive_group};
        new (place) python_group{sharing_group(options), label};
      },
      "label"_a = "group", nb::kw_only(), "streams_outlive_group"_a = false,
      "label: in errors and reports. streams_outlive_group: see sharing_options in\n"
      "escrow/deleter/sharing_group.hpp.");
  group.def_ro("label", &python_group::label, "In errors and reports.");
  group.def(
      "stats", [](python_group const& its) { return dict_of(to_json(its.held.stats())); },
      "A dict: slots, bytes, launches, stream_waits, outliving (ints), is_parked, and unordered: "
      "the ids of "
      "graphs whose\nlaunches nothing orders.");
  group.def(
      "run",
      [](python_group& its, nb::handle stream, nb::callable function, double wait_max) {
        return in_turn("Group.run", stream, std::move(function), wait_max,
                       [&](auto const&... what) { its.held.run(what...); });
      },
      "stream"_a.none(), "function"_a, "wait_max"_a = usual_wait,
      "Calls `function()`, which enqueues work on `stream`, as one more launch of the group, and "
      "returns its result.\nWhat it claims for `stream` from pools of the group lies in the "
      "group's "
      "memory; release it in the function.\nIt waits at most `wait_max` seconds for another "
      "thread's "
      "launch. There is no `with` for this: a block that\nnever ends would stop the group.\n\n"
      "Errors: GroupBusy; UsageError for a captured stream, inside another launch, and if a lease "
      "outlives the call;\nCudaError; what the function raises.");
}

void define_parking(nb::module_& to) {
  auto group = nb::borrow<nb::class_<python_group>>(to.attr("Group"));
  group.def(
      "park",
      [](python_group& its, bool keep_contents, double wait_max) {
        return waiting("Group.park", [&] {
          return its.held.park({.keep_contents = keep_contents, .wait_max = time_of(wait_max, {})});
        });
      },
      nb::kw_only(), "keep_contents"_a = false, "wait_max"_a = usual_wait,
      "Gives the memory that the group's graphs share back to the device until unpark(); graphs "
      "and "
      "execs stay.\nWaits for the last launch, at most `wait_max` seconds. keep_contents: copies "
      "it "
      "to the host and back.\nReturns the bytes.\n\nErrors: UsageError, which names what is in the "
      "way, and for launches meanwhile; GroupBusy; CudaError.");
  group.def(
      "unpark",
      [](python_group& its) { return waiting("Group.unpark", [&] { return its.held.unpark(); }); },
      "Maps that memory again. Returns the bytes. CudaError if there is none: the group stays "
      "parked.");
}

using held_exec = ends_without_gil<graph_exec>;

void define_exec(nb::module_& to) {
  nb::class_<held_exec> exec(
      to, "GraphExec", nb::is_weak_referenceable(),
      "Instantiates a graph and takes what it holds off it: its launches are as fast as those of a "
      "graph that holds\nnothing, and are ordered with others that share something with it. May "
      "end "
      "with launches in flight.\nOne thread at a time.");
  exec.def(
      "__init__",
      [](held_exec* place, nb::handle graph, unsigned long long flags, std::size_t copies,
         std::vector<nb::object> const& bodies) {
        cudaGraph_t const from = graph_of(graph);
        instantiate_options const options{
            .flags = flags, .bodies = graphs_of(bodies), .copies = copies};
        waiting("GraphExec", [&] { new (place) held_exec(graph_exec(from, options)); });
      },
      "graph"_a.none(), nb::kw_only(), "flags"_a = 0, "copies"_a = 0,
      "bodies"_a = std::vector<nb::object>(),
      "graph: the cudaGraph_t as an int, or an object that is one or has it as `handle`; it stays "
      "the caller's.\nflags: cudaGraphInstantiateFlags. copies: runs that one launch of "
      "launch_many() "
      "takes. bodies: all body\ngraphs of conditional nodes.");
  exec.def(
      "launch",
      [](held_exec& its, nb::handle stream, std::size_t times) {
        constexpr char const* call = "GraphExec.launch";
        cudaStream_t const on = stream_of(stream);
        waiting(call, [&] {
          graph_exec& held = its.need(call);
          refuse_capturing(call, on);
          held.launch_many(on, times);
        });
      },
      "stream"_a.none(), "times"_a = 1,
      "Enqueues `times` runs of the graph, one after another. UsageError for a captured stream.");
  exec.def(
      "update",
      [](held_exec& its, nb::handle graph, std::vector<nb::object> const& bodies) {
        constexpr char const* call = "GraphExec.update";
        cudaGraph_t const to_graph = graph_of(graph);
        auto const all = graphs_of(bodies);
        waiting(call, [&] { its.need(call).update(to_graph, all); });
      },
      "graph"_a.none(), "bodies"_a = std::vector<nb::object>(),
      "From the next launch on runs `graph`, of the same nodes and edges. CudaError if it does not "
      "fit; then nothing\nhas changed.");
  exec.def_prop_ro(
      "is_bare",
      [](held_exec& its) {
        return quickly("GraphExec.is_bare",
                       [&] { return its.need("GraphExec.is_bare").is_bare(); });
      },
      "Whether all that the graph held was taken off it.");
  exec.def_prop_ro(
      "handle",
      [](held_exec& its) {
        return quickly("GraphExec.handle", [&] {
          return reinterpret_cast<std::uintptr_t>(its.need("GraphExec.handle").get());
        });
      },
      "The cudaGraphExec_t as an int.");
  exec.def("close", &held_exec::reset, "Destroys the exec, also with launches in flight.");
  exec.def("__enter__", [](nb::object its) { return its; });
  exec.def(
      "__exit__", [](held_exec& its, nb::handle, nb::handle, nb::handle) { its.reset(); },
      "type"_a.none(), "value"_a.none(), "traceback"_a.none());
}

using held_hoisted = ends_without_gil<hoisted>;

void define_hoisted(nb::module_& to) {
  nb::class_<held_hoisted> held(
      to, "Hoisted", nb::is_weak_referenceable(),
      "What a graph held, for code that instantiates and launches by itself. Call release() after "
      "the "
      "last launch;\nelse what it holds is leaked, and counted. One thread at a time.");
  held.def(
      "__init__",
      [](held_hoisted* place, nb::handle graph, std::vector<nb::object> const& bodies) {
        cudaGraph_t const from = graph_of(graph);
        auto const all = graphs_of(bodies);
        waiting("Hoisted", [&] { new (place) held_hoisted(hoist(from, all)); });
      },
      "graph"_a.none(), "bodies"_a = std::vector<nb::object>(),
      "graph, bodies: as those of GraphExec. The graph holds nothing any more.");
  held.def(
      "launch",
      [](held_hoisted& its, nb::handle stream, nb::callable function, double wait_max) {
        constexpr char const* call = "Hoisted.launch";
        return in_turn(call, stream, std::move(function), wait_max,
                       [&](auto const&... what) { its.need(call).launch(what...); });
      },
      "stream"_a.none(), "function"_a, "wait_max"_a = usual_wait,
      "Calls `function()`, which launches execs of the graph on `stream`, in turn with all that "
      "shares something with\nit, and returns its result. Errors as Group.run().");
  held.def(
      "release",
      [](held_hoisted& its, nb::object const& stream) {
        constexpr char const* call = "Hoisted.release";
        std::optional<cudaStream_t> on;
        if (!stream.is_none()) on = stream_of(stream);
        waiting(call, [&] {
          hoisted& held_now = its.need(call);
          if (on) {
            held_now.release_after(*on);
          } else {
            held_now.release();
          }
        });
        its.reset();
      },
      "stream"_a = nb::none(),
      "Releases after the work on `stream` so far, and all launches of launch(); without a stream "
      "no "
      "other launch may\nbe in flight.");
}

char const* name_of(address_problem what) {
  switch (what) {
    case address_problem::not_held:
      return "not_held";
    case address_problem::of_another_graph:
      return "of_another_graph";
    case address_problem::freed:
      return "freed";
    case address_problem::only_looks_like:
      return "only_looks_like";
  }
  return "";
}

nb::dict dict_of(audit_finding const& found) {
  nb::dict its;
  its["what"] = name_of(found.what);
  its["address"] = reinterpret_cast<std::uintptr_t>(found.address);
  its["owner"] = nb::str(found.owner.c_str(), found.owner.size());
  its["kernel"] = found.kernel.empty() ? nb::object(nb::none())
                                       : nb::str(found.kernel.c_str(), found.kernel.size());
  its["argument"] = found.argument;
  its["offset"] = found.offset;
  its["node"] = reinterpret_cast<std::uintptr_t>(found.node);
  its["text"] = nb::str(found.text.c_str(), found.text.size());
  return its;
}

void define_audit(nb::module_& to) {
  to.def(
      "audit",
      [](nb::handle graph, std::vector<nb::object> const& bodies) {
        cudaGraph_t const asked = graph_of(graph);
        auto const all = graphs_of(bodies);
        auto const found = waiting("audit", [&] { return audit(asked, all); });
        nb::list result;
        for (audit_finding const& each : found) result.append(dict_of(each));
        return result;
      },
      "graph"_a.none(), "bodies"_a = std::vector<nb::object>(),
      "The addresses in a graph of memory of pools that it does not keep, e.g. of a lease of "
      "before "
      "the capture: a list\nof dicts: what (not_held, of_another_graph, freed, only_looks_like), "
      "address, owner, kernel, argument, offset, node,\nand text, which says it all. Any graph, "
      "also of another library. Changes nothing. graph, bodies: as those of\nGraphExec. UsageError "
      "if a group of it is parked.");
}

}  // namespace

void add_graphs(nb::module_& to) {
  define_group(to);
  define_parking(to);
  define_exec(to);
  define_hoisted(to);
  define_audit(to);
  to.def(
      "worker_stats", [] { return dict_of(to_json(deleter::global().stats())); },
      "Statistics of the worker that ends what the GPU no longer needs: a dict of ints: reclaimed, "
      "pending,\nin_graphs, leaked, errors and others.");
}

}  // namespace escrow::python
