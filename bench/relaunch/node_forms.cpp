// Straight lines of kernels as graphs, with nodes beside them that do what a temporary needs.
#include <array>
#include <utility>

#include "forms.hpp"
#include "plain_graph.hpp"

namespace escrow::bench {
namespace {

constexpr std::size_t temporary_bytes = std::size_t{1} << 20;

// The graph waits for an event and records it: how execs are ordered by nodes of their own.
class event_nodes_graph final : public plain_graph {
 public:
  event_nodes_graph(cudaGraph_t graph, test::owned_event&& event)
      : plain_graph(graph), event_(std::move(event)) {}

 private:
  test::owned_event event_;
};

std::unique_ptr<relaunch_form> make_event_nodes(cudaStream_t stream, shape const& of) {
  test::owned_event event = test::make_event();
  test::must(cudaEventRecord(event, stream));
  work kernels(of);
  test::owned_graph const graph = captured(stream, [&] {
    test::must(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal));
    kernels.enqueue(stream);
    test::must(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
  });
  return std::make_unique<event_nodes_graph>(graph, std::move(event));
}

std::unique_ptr<relaunch_form> make_memory_nodes(cudaStream_t stream, shape const& of) {
  work kernels(of);
  return std::make_unique<plain_graph>(captured(stream, [&] {
    void* temporary = nullptr;
    test::must(cudaMallocAsync(&temporary, temporary_bytes, stream));
    kernels.enqueue(stream);
    test::must(cudaFreeAsync(temporary, stream));
  }));
}

void CUDART_CB do_nothing(void*) {}

std::unique_ptr<relaunch_form> make_host_node(cudaStream_t stream, shape const& of) {
  work kernels(of);
  return std::make_unique<plain_graph>(captured(stream, [&] {
    kernels.enqueue(stream);
    test::must(cudaLaunchHostFunc(stream, &do_nothing, nullptr));
  }));
}

}  // namespace

std::span<named_form const> node_forms() {
  static constexpr std::array forms{
      named_form{"event_nodes", &make_event_nodes},
      named_form{"memory_nodes", &make_memory_nodes},
      named_form{"host_node", &make_host_node},
  };
  return forms;
}

}  // namespace escrow::bench
