// Graphs that hold nothing, or something by Escrow or by a user object; graphs with nodes that do
// what a temporary needs; and kernels that are launched one by one each time.
#include "forms.hpp"

#include <algorithm>
#include <escrow/pool.hpp>
#include <optional>
#include <utility>

#include "graphs.hpp"
#include "wait_until.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t temporary_bytes = std::size_t{1} << 20;
constexpr std::chrono::seconds end_wait_max{1};  // destructors take a millisecond

constexpr std::pair<cudaGraphNodeType, char const*> node_names[]{
    {cudaGraphNodeTypeKernel, "kernel"},
    {cudaGraphNodeTypeHost, "host"},
    {cudaGraphNodeTypeEmpty, "empty"},
    {cudaGraphNodeTypeWaitEvent, "wait_event"},
    {cudaGraphNodeTypeEventRecord, "event_record"},
    {cudaGraphNodeTypeMemAlloc, "mem_alloc"},
    {cudaGraphNodeTypeMemFree, "mem_free"},
};

std::string name_of(cudaGraphNodeType type) {
  for (auto const& [known, name] : node_names) {
    if (known == type) return name;
  }
  return "type_" + std::to_string(static_cast<int>(type));
}

// What a form launches: an exec by plain CUDA calls; the same with an event record behind it, which
// are the calls that Escrow makes; and kernels without a graph. The last is escrow::graph_exec.
struct plain_exec {
  void launch(cudaStream_t stream) const { test::must(cudaGraphLaunch(exec, stream)); }
  void upload(cudaStream_t stream) const { test::must(cudaGraphUpload(exec, stream)); }

  test::owned_exec exec;
};

struct recorded_exec : plain_exec {
  void launch(cudaStream_t stream) const {
    plain_exec::launch(stream);
    test::must(cudaEventRecord(event, stream));
  }

  test::owned_event event = test::make_event();
};

// A pool, from which a capture or each run claims its temporary.
struct with_pool final : with_deleter {
  [[nodiscard]] std::size_t slots_held() const override { return pool.stats().in_graphs; }

  resource_pool<device_block> pool{{.label = "relaunch", .deleter = &deleter},
                                   [] { return device_block(temporary_bytes); }};
};

struct eager_pool {
  void launch(cudaStream_t stream) {
    auto const temporary = around->pool.claim(stream);
    kernels.enqueue(stream);
  }
  void upload(cudaStream_t) {}

  work kernels;
  std::shared_ptr<with_pool> around;
};

// An object whose shares destructors or host functions drop.
struct with_shares final : surroundings {
  [[nodiscard]] std::size_t owed() override {
    static_cast<void>(test::wait_until([this] { return object.use_count() == 1; }, end_wait_max));
    return static_cast<std::size_t>(object.use_count() - 1);
  }

  std::shared_ptr<int> object = std::make_shared<int>(0);
};

struct eager_host_function {
  void launch(cudaStream_t stream) {
    auto share = std::make_unique<std::shared_ptr<int>>(around->object);
    kernels.enqueue(stream);
    test::must(cudaLaunchHostFunc(stream, &drop_share, share.get()));
    static_cast<void>(share.release());
  }
  void upload(cudaStream_t) {}

  work kernels;
  std::shared_ptr<with_shares> around;
};

struct with_event final : surroundings {
  test::owned_event event = test::make_event();
};

template <class Exec>
class exec_form final : public relaunch_form {
 public:
  template <class... Arguments>
  exec_form(graph_facts graph, std::shared_ptr<surroundings> around, Arguments&&... arguments)
      : relaunch_form(std::move(graph)),
        around_(around ? std::move(around) : std::make_shared<surroundings>()),
        exec_(Exec{std::forward<Arguments>(arguments)...}) {}

  void launch(cudaStream_t stream) override { exec_->launch(stream); }
  void upload(cudaStream_t stream) override { exec_->upload(stream); }
  [[nodiscard]] std::size_t slots_held() const override { return around_->slots_held(); }
  [[nodiscard]] std::size_t end() override {
    exec_.reset();
    return around_->owed();
  }

 private:
  std::shared_ptr<surroundings> around_;
  std::optional<Exec> exec_;
};

void nothing(cudaStream_t) {}

// A capture of the shape with plain CUDA calls, and with something enqueued before and after it.
template <class Before = decltype(&nothing), class After = decltype(&nothing)>
test::owned_graph captured_shape(cudaStream_t stream, shape const& of, Before before = &nothing,
                                 After after = &nothing) {
  work kernels(of);
  return captured(stream, [&] {
    before(stream);
    kernels.enqueue(stream);
    after(stream);
  });
}

std::unique_ptr<relaunch_form> make_bare(cudaStream_t stream, shape const& of) {
  return form_of(captured_shape(stream, of));
}

std::unique_ptr<relaunch_form> make_bare_recorded(cudaStream_t stream, shape const& of) {
  auto const graph = captured_shape(stream, of);
  return std::make_unique<exec_form<recorded_exec>>(facts_of(graph), nullptr,
                                                    plain_exec{test::instantiate(graph)});
}

std::unique_ptr<relaunch_form> make_user_object(cudaStream_t stream, shape const& of) {
  auto const graph = captured_shape(stream, of);
  auto const around = std::make_shared<with_shares>();
  keep_share(graph, around->object);
  return form_of(graph, around);
}

// The capture claims its temporary from the pool, and retires `owners` owners.
graph pooled_shape(with_pool& from, cudaStream_t stream, shape const& of, int owners) {
  work kernels(of);
  return capture(stream_ref(stream), [&](stream_ref capturing) {
    auto const temporary = from.pool.claim(capturing);
    for (int i = 0; i < owners; ++i) from.deleter.retire(capturing, std::make_unique<int>(i));
    kernels.enqueue(stream);
  });
}

template <int owners>
std::unique_ptr<relaunch_form> make_escrow(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<with_pool>();
  return form_of(pooled_shape(*around, stream, of, owners), around);
}

// The same graph for a caller that instantiates and launches it with plain CUDA calls: the user
// object is in the exec.
std::unique_ptr<relaunch_form> make_escrow_user_object(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<with_pool>();
  return form_of(pooled_shape(*around, stream, of, 0).get(), around);
}

// The graph waits for an event and records it: how execs are ordered by nodes of their own.
std::unique_ptr<relaunch_form> make_event_nodes(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<with_event>();
  cudaEvent_t const event = around->event;
  test::must(cudaEventRecord(event, stream));
  auto const graph = captured_shape(
      stream, of,
      [=](cudaStream_t on) { test::must(cudaStreamWaitEvent(on, event, cudaEventWaitExternal)); },
      [=](cudaStream_t on) {
        test::must(cudaEventRecordWithFlags(event, on, cudaEventRecordExternal));
      });
  return form_of(graph, around);
}

std::unique_ptr<relaunch_form> make_memory_nodes(cudaStream_t stream, shape const& of) {
  void* temporary = nullptr;
  return form_of(captured_shape(
      stream, of,
      [&](cudaStream_t on) { test::must(cudaMallocAsync(&temporary, temporary_bytes, on)); },
      [&](cudaStream_t on) { test::must(cudaFreeAsync(temporary, on)); }));
}

void CUDART_CB do_nothing(void*) {}

std::unique_ptr<relaunch_form> make_host_node(cudaStream_t stream, shape const& of) {
  return form_of(captured_shape(stream, of, &nothing, [](cudaStream_t on) {
    test::must(cudaLaunchHostFunc(on, &do_nothing, nullptr));
  }));
}

template <class Eager, class Around>
std::unique_ptr<relaunch_form> make_eager(cudaStream_t, shape const& of) {
  auto const around = std::make_shared<Around>();
  return std::make_unique<exec_form<Eager>>(graph_facts{}, around, work(of), around);
}

constexpr arm<form_setup> forms[]{
    {"bare", &make_bare},
    {"bare_again", &make_bare},
    {"bare_recorded", &make_bare_recorded},
    {"escrow", &make_escrow<0>},
    {"escrow_4096_objects", &make_escrow<4096>},
    {"escrow_user_object", &make_escrow_user_object},
    {"user_object", &make_user_object},
    {"event_nodes", &make_event_nodes},
    {"memory_nodes", &make_memory_nodes},
    {"host_node", &make_host_node},
    {"eager_pool", &make_eager<eager_pool, with_pool>},
    {"eager_host_function", &make_eager<eager_host_function, with_shares>},
};

}  // namespace

work::work(shape const& of) : kernels_(of.kernels) {
  if (of.branches == 1) return;
  fork_ = test::make_event();
  for (int i = 1; i < of.branches; ++i) {
    side_streams_.push_back(test::make_stream());
    joins_.push_back(test::make_event());
  }
}

void work::enqueue(cudaStream_t stream) {
  if (!side_streams_.empty()) test::must(cudaEventRecord(fork_, stream));
  for (std::size_t i = 0; i < side_streams_.size(); ++i) {
    test::must(cudaStreamWaitEvent(side_streams_[i], fork_, 0));
    enqueue_row(side_streams_[i], kernels_);
    test::must(cudaEventRecord(joins_[i], side_streams_[i]));
  }
  enqueue_row(stream, kernels_);
  for (auto const& join : joins_) test::must(cudaStreamWaitEvent(stream, join, 0));
}

graph_facts facts_of(cudaGraph_t graph) {
  graph_facts facts;
  std::size_t count = 0;
  test::must(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count != 0) test::must(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t const node : nodes) {
    cudaGraphNodeType type{};
    test::must(cudaGraphNodeGetType(node, &type));
    ++facts["nodes_" + name_of(type)];
  }
  std::size_t edges = 0;
  test::must(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  facts["edges"] = static_cast<int>(edges);
  return facts;
}

std::size_t with_deleter::owed() {
  static_cast<void>(
      test::wait_until([this] { return deleter.stats().in_graphs == 0; }, end_wait_max));
  static_cast<void>(deleter.drain_for(end_wait_max));
  return deleter.stats().in_graphs;
}

std::unique_ptr<relaunch_form> form_of(cudaGraph_t graph, std::shared_ptr<surroundings> around) {
  return std::make_unique<exec_form<plain_exec>>(facts_of(graph), std::move(around),
                                                 test::instantiate(graph));
}

std::unique_ptr<relaunch_form> form_of(graph const& graph, std::shared_ptr<surroundings> around) {
  graph_exec exec(graph);
  test::must(exec.is_bare(), "the exec is bare");
  return std::make_unique<exec_form<graph_exec>>(facts_of(graph.get()), std::move(around),
                                                 std::move(exec));
}

arm<form_setup> form_named(std::string_view name) {
  auto const found =
      std::ranges::find_if(forms, [=](arm<form_setup> const& each) { return each.name == name; });
  test::must(found != std::end(forms), "there is a form of this name");
  return *found;
}

}  // namespace escrow::bench
