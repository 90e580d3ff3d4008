// SPDX-License-Identifier: Apache-2.0
// The C API of execs, of hoisted graphs, and of groups of graphs that share scratch.
#include <optional>
#include <vector>

#include "calls.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/graph/audit.hpp"
#include "escrow/graph/graph_exec.hpp"
#include "escrow/graph/hoist.hpp"

using namespace escrow;

struct escrow_exec : in_handle_memory<escrow_exec> {
  graph_exec held;
  std::size_t copies;  // asked for
};

struct escrow_hoisted : in_handle_memory<escrow_hoisted> {
  hoisted held;
};

struct escrow_captured : in_handle_memory<escrow_captured> {
  graph held;
  cudaGraph_t handle;  // of `held`
};

namespace {

// This thread's escrow_graphs_lock().
struct graphs_lock {
  std::optional<graph_lifetime_lock> held;
  std::size_t times = 0;
};
thread_local graphs_lock locked;

}  // namespace

escrow_status escrow_group_create(char const* label, escrow_group** group) {
  return run(__func__, [&](c_call by) {
    escrow_group*& result = by.need(group, "group");
    sharing_options options;
    if (label != nullptr) options.label = label;
    result = new escrow_group{{}, sharing_group(options)};
  });
}

void escrow_group_destroy(escrow_group* group) {
  destroy_without_gil(__func__, group);
}

escrow_status escrow_group_statistics(escrow_group* group, escrow_group_stats* stats) {
  return run(__func__, [&](c_call by) {
    sharing_stats const now = by.need(group, "group").held.stats();
    by.copy_stats({.size = 0,
                   .slots = now.slots,
                   .bytes = now.bytes,
                   .launches = now.launches,
                   .stream_waits = now.stream_waits,
                   .unordered = now.unordered.size(),
                   .outliving = now.outliving,
                   .is_parked = now.is_parked ? 1U : 0U},
                  stats);
  });
}

namespace {

park_options options_of(c_call by, escrow_park_options const* given) {
  park_options how;
  if (given == nullptr) return how;
  if (given->size != sizeof *given) {
    by.refuse("options->size", "is not the size of a known version",
              "set it to sizeof(escrow_park_options), with a header that is no newer than the "
              "library");
  }
  how.keep_contents = given->keep_contents != 0;
  if (given->wait_max_ns != 0) how.wait_max = time_of(given->wait_max_ns);
  return how;
}

void tell(std::vector<parked_group> const& all, escrow_parked_report report, void* user,
          without_gil& others_run) {
  if (report == nullptr) return;
  without_gil::as_before const called(others_run);
  for (parked_group const& each : all) {
    report(user, each.label.c_str(), each.bytes,
           each.refusal.empty() ? nullptr : each.refusal.c_str());
  }
}

}  // namespace

escrow_status escrow_group_park(escrow_group* group, escrow_park_options const* options,
                                size_t* bytes) {
  return run_without_gil(__func__, [&](c_call by) {
    std::size_t const freed = by.need(group, "group").held.park(options_of(by, options));
    if (bytes != nullptr) *bytes = freed;
  });
}

escrow_status escrow_group_unpark(escrow_group* group, size_t* bytes) {
  return run_without_gil(__func__, [&](c_call by) {
    std::size_t const mapped = by.need(group, "group").held.unpark();
    if (bytes != nullptr) *bytes = mapped;
  });
}

escrow_status escrow_park_all(escrow_park_options const* options, escrow_parked_report report,
                              void* user) {
  without_gil others_run;
  return run(__func__, [&](c_call by) {
    tell(park_all(options_of(by, options), by.where), report, user, others_run);
  });
}

escrow_status escrow_unpark_all(escrow_parked_report report, void* user) {
  without_gil others_run;
  return run(__func__, [&](c_call by) { tell(unpark_all(by.where), report, user, others_run); });
}

namespace {

void create_exec(c_call by, cudaGraph_t graph, instantiate_options const& options,
                 escrow_exec** exec) {
  escrow_exec*& result = by.need(exec, "exec");
  static_cast<void>(by.need(graph, "graph"));
  result = new escrow_exec{{}, graph_exec(graph, options), options.copies};
}

// False if the graph does not fit.
bool is_updated_to(graph_exec& exec, cudaGraph_t graph, std::vector<cudaGraph_t> const& bodies) {
  try {
    exec.update(graph, bodies);
    return true;
  } catch (cuda_error const& failed) {
    if (failed.status() != cudaErrorGraphExecUpdateFailure) throw;
    return false;
  }
}

graph_exec& to_launch(c_call by, escrow_exec* exec, cudaStream_t stream) {
  graph_exec& its = by.need(exec, "exec").held;
  by.refuse_capturing(stream);
  return its;
}

}  // namespace

escrow_status escrow_exec_create(cudaGraph_t graph, unsigned long long flags,
                                 cudaGraph_t const* bodies, size_t body_count, escrow_exec** exec) {
  return run_without_gil(__func__, [&](c_call by) {
    create_exec(by, graph, {.flags = flags, .bodies = by.bodies(bodies, body_count)}, exec);
  });
}

escrow_status escrow_exec_create_with_copies(cudaGraph_t graph, unsigned long long flags,
                                             size_t copies, escrow_exec** exec) {
  return run_without_gil(__func__, [&](c_call by) {
    create_exec(by, graph, {.flags = flags, .copies = copies}, exec);
  });
}

escrow_status escrow_exec_launch(escrow_exec* exec, cudaStream_t stream) {
  return run_without_gil(__func__,
                         [&](c_call by) { to_launch(by, exec, stream).launch(stream, by.where); });
}

escrow_status escrow_exec_launch_many(escrow_exec* exec, cudaStream_t stream, size_t times) {
  return run_without_gil(__func__, [&](c_call by) {
    to_launch(by, exec, stream).launch_many(stream, times, by.where);
  });
}

escrow_status escrow_exec_update(escrow_exec* exec, cudaGraph_t graph, cudaGraph_t const* bodies,
                                 size_t body_count) {
  return run_without_gil(__func__, [&](c_call by) {
    graph_exec& its = by.need(exec, "exec").held;
    static_cast<void>(by.need(graph, "graph"));
    its.update(graph, by.bodies(bodies, body_count));
  });
}

escrow_status escrow_exec_update_or_create(escrow_exec** exec, cudaGraph_t graph,
                                           unsigned long long flags, cudaGraph_t const* bodies,
                                           size_t body_count, bool* is_created) {
  return run_without_gil(__func__, [&](c_call by) {
    escrow_exec* const given = by.need(exec, "exec");
    static_cast<void>(by.need(graph, "graph"));
    instantiate_options options{.flags = flags, .bodies = by.bodies(bodies, body_count)};
    if (given != nullptr) static_cast<void>(by.need(given, "*exec"));
    bool const is_updated = given != nullptr && is_updated_to(given->held, graph, options.bodies);
    if (given == nullptr) {
      create_exec(by, graph, options, exec);
    } else if (!is_updated) {
      options.copies = given->copies;
      given->held = graph_exec(graph, options);
    }
    if (is_created != nullptr) *is_created = !is_updated;
  });
}

void escrow_exec_destroy(escrow_exec* exec) {
  destroy_without_gil(__func__, exec);
}

void escrow_graphs_lock() {
  without_gil const others_run;
  if (locked.times++ == 0) locked.held.emplace();
}

void escrow_graphs_unlock() {
  if (locked.times != 0 && --locked.times == 0) locked.held.reset();
}

escrow_status escrow_graph_destroy(cudaGraph_t graph) {
  return run_without_gil(__func__, [&](c_call) {
    if (graph == nullptr) return;
    relaxed_capture_scope const relaxed;
    graph_lifetime_lock const lock;
    check(cudaGraphDestroy(graph), "cudaGraphDestroy", source_location::current(),
          "the graph was destroyed before, or an escrow_captured has it");
  });
}

escrow_status escrow_capture_end(cudaStream_t stream, escrow_captured** captured) {
  return run_without_gil(__func__, [&](c_call by) {
    escrow_captured*& result = by.need(captured, "captured");
    graph made = end_capture(stream, audit_use::by_default, by.where);
    cudaGraph_t const handle = made.get(by.where);
    result = new escrow_captured{{}, std::move(made), handle};
  });
}

cudaGraph_t escrow_captured_graph(escrow_captured const* captured) {
  cudaGraph_t graph = nullptr;
  escrow_status const status = run(__func__, [&](c_call by) {
    if (captured != nullptr) graph = by.need(captured, "captured").handle;
  });
  if (status != ESCROW_OK) print_last_error();
  return graph;
}

void escrow_captured_destroy(escrow_captured* captured) {
  destroy_without_gil(__func__, captured);
}

escrow_status escrow_graph_audit(cudaGraph_t graph, cudaGraph_t const* bodies, size_t body_count,
                                 size_t* findings, char* text, size_t capacity, size_t* length) {
  return run(__func__, [&](c_call by) {
    std::size_t& count = by.need(findings, "findings");
    static_cast<void>(by.need(graph, "graph"));
    std::vector<audit_finding> const found = audit(graph, by.bodies(bodies, body_count));
    by.copy_text(describe(found), text, capacity, length);
    count = found.size();
  });
}

escrow_status escrow_hoist(cudaGraph_t graph, cudaGraph_t const* bodies, size_t body_count,
                           escrow_hoisted** hoisted) {
  return run_without_gil(__func__, [&](c_call by) {
    escrow_hoisted*& result = by.need(hoisted, "hoisted");
    static_cast<void>(by.need(graph, "graph"));
    result = new escrow_hoisted{{}, hoist(graph, by.bodies(bodies, body_count), by.where)};
  });
}

escrow_status escrow_hoisted_launch(escrow_hoisted* hoisted, cudaStream_t stream,
                                    escrow_launch_call call, void* data, uint64_t wait_max_ns) {
  without_gil others_run;
  return run(__func__, [&](c_call by) {
    class hoisted& held = by.need(hoisted, "hoisted").held;
    auto& launches = by.need(call, "call");
    auto const launch = [&] {
      without_gil::as_before const called(others_run);
      return launches(data);
    };
    held.launch(stream, launch, time_of(wait_max_ns), by.where);
  });
}

escrow_status escrow_group_run(escrow_group* group, cudaStream_t stream, escrow_launch_call call,
                               void* data, uint64_t wait_max_ns) {
  without_gil others_run;
  return run(__func__, [&](c_call by) {
    sharing_group& its = by.need(group, "group").held;
    auto& works = by.need(call, "call");
    auto const work = [&] {
      without_gil::as_before const called(others_run);
      return works(data);
    };
    its.run(stream, work, time_of(wait_max_ns), by.where);
  });
}

escrow_status escrow_hoisted_release(escrow_hoisted* hoisted, cudaStream_t stream) {
  return run_without_gil(__func__, [&](c_call by) {
    by.need(hoisted, "hoisted").held.release_after(stream);
    delete hoisted;
  });
}

escrow_status escrow_hoisted_release_now(escrow_hoisted* hoisted) {
  return run_without_gil(__func__, [&](c_call by) {
    by.need(hoisted, "hoisted").held.release();
    delete hoisted;
  });
}

void escrow_hoisted_destroy(escrow_hoisted* hoisted) {
  destroy_without_gil(__func__, hoisted);
}
