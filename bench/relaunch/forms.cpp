// Graphs that hold nothing, or something by Escrow or by a user object; graphs with nodes that do
// what a temporary needs; and kernels that are launched one by one each time.
#include "forms.hpp"

#include <escrow/internal/graph_query.hpp>

#include "graphs.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t temporary_bytes = std::size_t{1} << 20;
constexpr std::chrono::seconds end_wait_max{1};  // destructors take a millisecond

// Looks at the graph itself, not at its child graphs.
graph_facts facts_of(cudaGraph_t graph) {
  graph_facts facts;
  for (cudaGraphNode_t const node : nodes_of(graph)) {
    cudaGraphNodeType type{};
    test::must(cudaGraphNodeGetType(node, &type));
    bool const is_kernel = type == cudaGraphNodeTypeKernel;
    ++facts["nodes_" + (is_kernel ? "kernel" : "type_" + std::to_string(type))];
  }
  std::size_t edges = 0;
  test::must(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  facts["edges"] = static_cast<int>(edges);
  return facts;
}

// What: enqueues a shape on a stream, with streams of its own for all branches but the first.
// Lifetime: must outlive a capture that it enqueues in, for the sake of these streams.
class work {
 public:
  explicit work(shape const& of) : kernels_(of.kernels) {
    for (int i = 1; i < of.branches; ++i) side_streams_.push_back(test::make_stream());
  }

  void enqueue(cudaStream_t stream) {
    if (!side_streams_.empty()) test::must(cudaEventRecord(fork_, stream));
    for (auto const& side : side_streams_) {
      test::must(cudaStreamWaitEvent(side, fork_, 0));
      enqueue_row(side, kernels_);
    }
    enqueue_row(stream, kernels_);
    for (auto const& side : side_streams_) {
      test::must(cudaEventRecord(join_, side));
      test::must(cudaStreamWaitEvent(stream, join_, 0));
    }
  }

 private:
  int kernels_;
  test::owned_event fork_ = test::make_event(), join_ = test::make_event();
  std::vector<test::owned_stream> side_streams_;
};

// A capture of the shape with plain CUDA calls, and with something enqueued before and after it.
template <class Before, class After>
test::owned_graph captured_between(cudaStream_t stream, shape const& of, Before before,
                                   After after) {
  work kernels(of);
  return captured(stream, [&] {
    before();
    kernels.enqueue(stream);
    after();
  });
}

test::owned_graph captured_shape(cudaStream_t stream, shape const& of) {
  return captured_between(
      stream, of, [] {}, [] {});
}

relaunch_form make_bare(cudaStream_t stream, shape const& of) {
  return form_of(captured_shape(stream, of));
}

// With an event record behind each launch: the calls that Escrow makes.
relaunch_form make_bare_recorded(cudaStream_t stream, shape const& of) {
  relaunch_form made = make_bare(stream, of);
  auto const event = std::make_shared<test::owned_event>(test::make_event());
  made.launch = [=, launch = made.launch](cudaStream_t on) {
    launch(on);
    test::must(cudaEventRecord(*event, on));
  };
  return made;
}

// An object whose shares destructors or host functions drop, all but this one.
using shared_object = std::shared_ptr<std::shared_ptr<int> const>;

shared_object make_object() {
  return std::make_shared<std::shared_ptr<int> const>(std::make_shared<int>(0));
}

relaunch_form form_with(shared_object const& object) {
  relaunch_form made;
  made.owed = [=] {
    static_cast<void>(test::wait_until([&] { return object->use_count() == 1; }, end_wait_max));
    return static_cast<std::size_t>(object->use_count() - 1);
  };
  return made;
}

relaunch_form make_user_object(cudaStream_t stream, shape const& of) {
  auto const graph = captured_shape(stream, of);
  auto const object = make_object();
  keep_share(graph, *object);
  return form_of(graph, form_with(object));
}

// `around` has the pool from which a capture or each run claims its temporary.
relaunch_form form_with(std::shared_ptr<pooled_blocks> const& around) {
  relaunch_form made;
  made.slots_held = [=] { return around->pool.stats().in_graphs; };
  made.owed = [=] { return owed_by(around->deleter); };
  return made;
}

// The capture claims its temporary from the pool, and retires `owners` owners.
graph pooled_shape(pooled_blocks& from, cudaStream_t stream, shape const& of, int owners = 0) {
  work kernels(of);
  return capture(stream_ref(stream), [&](stream_ref capturing) {
    auto const temporary = from.pool.claim(capturing);
    for (int i = 0; i < owners; ++i) from.deleter.retire(capturing, std::make_unique<int>(i));
    kernels.enqueue(stream);
  });
}

template <int owners>
relaunch_form make_escrow(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  return form_of(pooled_shape(*around, stream, of, owners), form_with(around));
}

// The same graph in a launcher: no launch is recorded.
relaunch_form make_lazy(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  graph const source = pooled_shape(*around, stream, of);
  graph_exec exec(source);
  exec.upload(stream);
  auto const launcher = std::make_shared<stream_launcher>(std::move(exec), stream);
  relaunch_form made = form_with(around);
  made.launch = [=](cudaStream_t) { launcher->launch(); };
  made.facts = facts_of(source.get());
  return made;
}

// The same graph for a caller that instantiates and launches it with plain CUDA calls: the user
// object is in the exec.
relaunch_form make_escrow_user_object(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  return form_of(pooled_shape(*around, stream, of).get(), form_with(around));
}

// The graph waits for an event and records it: how execs are ordered by nodes of their own.
relaunch_form make_event_nodes(cudaStream_t stream, shape const& of) {
  auto const event = std::make_shared<test::owned_event>(test::make_event());
  test::must(cudaEventRecord(*event, stream));
  relaunch_form with_event;
  with_event.owed = [event] { return std::size_t{0}; };
  auto const wait = [&] { test::must(cudaStreamWaitEvent(stream, *event, cudaEventWaitExternal)); };
  auto const record = [&] {
    test::must(cudaEventRecordWithFlags(*event, stream, cudaEventRecordExternal));
  };
  return form_of(captured_between(stream, of, wait, record), with_event);
}

relaunch_form make_memory_nodes(cudaStream_t stream, shape const& of) {
  void* temporary = nullptr;
  return form_of(captured_between(
      stream, of, [&] { test::must(cudaMallocAsync(&temporary, temporary_bytes, stream)); },
      [&] { test::must(cudaFreeAsync(temporary, stream)); }));
}

void CUDART_CB do_nothing(void*) {}

relaunch_form make_host_node(cudaStream_t stream, shape const& of) {
  return form_of(captured_between(
      stream, of, [] {}, [&] { test::must(cudaLaunchHostFunc(stream, &do_nothing, nullptr)); }));
}

relaunch_form make_eager_pool(cudaStream_t, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  relaunch_form made = form_with(around);
  made.launch = [around, kernels = std::make_shared<work>(of)](cudaStream_t stream) {
    auto const temporary = around->pool.claim(stream);
    kernels->enqueue(stream);
  };
  return made;
}

relaunch_form make_eager_host_function(cudaStream_t, shape const& of) {
  auto const object = make_object();
  relaunch_form made = form_with(object);
  made.launch = [=, kernels = std::make_shared<work>(of)](cudaStream_t stream) {
    auto share = std::make_unique<std::shared_ptr<int>>(*object);
    kernels->enqueue(stream);
    test::must(cudaLaunchHostFunc(stream, &drop_share, share.get()));
    static_cast<void>(share.release());
  };
  return made;
}

constexpr arm<form_setup> forms[]{
    {"bare", &make_bare},
    {"bare_again", &make_bare},
    {"bare_recorded", &make_bare_recorded},
    {"escrow", &make_escrow<0>},
    {"lazy", &make_lazy},
    {"escrow_4096_objects", &make_escrow<4096>},
    {"escrow_user_object", &make_escrow_user_object},
    {"user_object", &make_user_object},
    {"event_nodes", &make_event_nodes},
    {"memory_nodes", &make_memory_nodes},
    {"host_node", &make_host_node},
    {"eager_pool", &make_eager_pool},
    {"eager_host_function", &make_eager_host_function},
};

}  // namespace

std::size_t owed_by(escrow::deleter& deleter) {
  static_cast<void>(test::wait_until([&] { return deleter.stats().in_graphs == 0; }, end_wait_max));
  static_cast<void>(deleter.drain_for(end_wait_max));
  return deleter.stats().in_graphs;
}

relaunch_form form_of(cudaGraph_t graph, relaunch_form rest) {
  auto const exec = std::make_shared<test::owned_exec>(test::instantiate(graph));
  rest.launch = [=](cudaStream_t stream) { test::must(cudaGraphLaunch(*exec, stream)); };
  rest.upload = [=](cudaStream_t stream) { test::must(cudaGraphUpload(*exec, stream)); };
  rest.facts = facts_of(graph);
  return rest;
}

relaunch_form form_of(graph const& graph, relaunch_form rest) {
  auto const exec = std::make_shared<graph_exec>(graph);
  test::must(exec->is_bare(), "the exec is bare");
  rest.launch = [=](cudaStream_t stream) { exec->launch(stream); };
  rest.upload = [=](cudaStream_t stream) { exec->upload(stream); };
  rest.facts = facts_of(graph.get());
  return rest;
}

arm<form_setup> form_named(std::string_view name) {
  return arm_named(name, forms);
}

}  // namespace escrow::bench
