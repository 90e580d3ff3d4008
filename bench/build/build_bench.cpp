// SPDX-License-Identifier: Apache-2.0
// What building a graph by hand costs: a chain of kernel nodes, each with two owners. And an audit
// of one.
//
// Each form takes turns with plain CUDA calls that keep nothing alive (bare): both build the same
// chain, one right after the other. The time is nanoseconds per node from the empty graph to its
// last node; `of_bare` is its share of the bare one's. bare_again is bare once more.
#include <array>
#include <cstdint>
#include <escrow/nodes.hpp>

#include "graphs.hpp"
#include "launches.hpp"
#include "memory.hpp"

namespace escrow::bench {
namespace {

constexpr int chain_nodes = 10'000;

// Owners for a chain of nodes, two for each, no two of which are the same; all are of one
// allocation, so that neither making nor destroying them is a call of CUDA. Must outlive what
// shares them.
struct chain_owners {
  explicit chain_owners(int nodes) : memory(2 * static_cast<std::size_t>(nodes)) {
    auto const share = [this](int at) {
      return std::shared_ptr<int>(memory.data() + at, [](int*) {});
    };
    for (int i = 0; i < nodes; ++i) all.emplace_back(share(2 * i), share(2 * i + 1));
  }

  test::device_ints memory;
  std::vector<std::pair<std::shared_ptr<int>, std::shared_ptr<int>>> all;
};

void add_plain_nodes(cudaGraph_t graph, chain_owners const& owners) {
  cudaGraphNode_t last = nullptr;
  for (auto const& [first, second] : owners.all) {
    std::array<int*, 2> pointers{first.get(), second.get()};
    std::array<void*, 2> values{&pointers[0], &pointers[1]};
    cudaKernelNodeParams params{};
    params.func = test::kernel_address(test::kernel_id::two_pointers);
    params.gridDim = params.blockDim = dim3(1, 1, 1);
    params.kernelParams = values.data();
    cudaGraphNode_t const after = last;
    test::must(cudaGraphAddKernelNode(&last, graph, &after, after == nullptr ? 0 : 1, &params));
  }
}

void add_escrow_nodes(graph& to, chain_owners const& owners) {
  kernel const launched(test::kernel_address(test::kernel_id::two_pointers));
  launch_config const config;
  graph_builder_ref last = to;
  for (auto const& [first, second] : owners.all) {
    last = last.add(kernel_node(launched, config, first, second));
  }
}

// Nanoseconds per node, from the empty graph to its last one.
template <class Build>
double ns_a_node(Build build) {
  return us_of(build) * 1e3 / chain_nodes;
}

double build_plainly(chain_owners const& owners) {
  test::owned_graph const built = test::make_graph();
  return ns_a_node([&] { add_plain_nodes(built, owners); });
}

// With a deleter that has never kept anything, as for the first graph that a program builds.
double build_with_escrow(chain_owners const& owners) {
  escrow::deleter fresh;
  std::optional<graph> built(std::in_place, fresh);
  double const ns = ns_a_node([&] { add_escrow_nodes(*built, owners); });
  test::must(built->get() != nullptr, "the graph has a handle");
  built.reset();
  settle(fresh);
  return ns;
}

using build_arm = arm<double(chain_owners const&)>;

constexpr build_arm arms[]{{"bare_again", &build_plainly, 4}, {"escrow", &build_with_escrow, 6}};

void run_build(benchmark::State& state, build_arm const& which) {
  chain_owners const owners(chain_nodes);
  for (auto* const each : {&build_plainly, which.setup}) static_cast<void>(each(owners));
  turns taken;
  repeat(state, [&] {
    return 1e-3 *
           taken.add([&] { return build_plainly(owners); }, [&] { return which.setup(owners); });
  });
  state.counters["of_bare"] = taken.share();
}

constexpr int audited_nodes = 1'000;

void run_audit(benchmark::State& state) {
  escrow::deleter deleter;
  auto const memory = std::make_shared<device_buffer<int>>(2 * audited_nodes);
  graph built(deleter);
  graph_builder_ref last = built;
  kernel const launched(test::kernel_address(test::kernel_id::two_pointers));
  for (int i = 0; i < audited_nodes; ++i) {
    std::shared_ptr<int> const first(memory, memory->data() + 2 * i);
    std::shared_ptr<int> const second(memory, memory->data() + 2 * i + 1);
    last = last.add(kernel_node(launched, {}, first, second));
  }
  std::size_t found = 0;
  repeat(state, [&] { return us_of([&] { found += audit(built).size(); }); });
  test::must(found == 0, "the graph has all that it uses");
}

constexpr int launched_nodes = 64;

struct with_owners {
  escrow::deleter deleter;
  chain_owners owners{launched_nodes};
};

relaunch_form make_bare(cudaStream_t) {
  auto const owners = std::make_shared<chain_owners>(launched_nodes);
  test::owned_graph const built = test::make_graph();
  add_plain_nodes(built, *owners);
  return form_of(built, [owners] {});
}

relaunch_form make_retained(cudaStream_t stream) {
  auto const around = std::make_shared<with_owners>();
  graph built(around->deleter);
  add_escrow_nodes(built, around->owners);
  relaunch_form made = form_of(built, [around] { settle(around->deleter); });
  test::must(made.facts == make_bare(stream).facts, "both graphs have the same nodes");
  return made;
}

}  // namespace

void register_all(settings const& how) {
  for (build_arm const& each : arms) {
    add("build/" + std::string(each.name) + "/nodes:" + std::to_string(chain_nodes),
        {how.choose(each.times_max, 1), how.choose(9, 1), benchmark::kNanosecond}, &run_build,
        each);
  }
  add("audit/nodes:" + std::to_string(audited_nodes),
      {how.choose(20, 1), how.choose(9, 1), benchmark::kMicrosecond}, &run_audit);
  constexpr sizes on_gpu{.instances = 3, .row = 100, .steady = 200, .bursts = 2};
  std::string const nodes = "/nodes:" + std::to_string(launched_nodes);
  add_launches(how, "retained/bare_again" + nodes, &make_bare, &make_bare, on_gpu);
  add_launches(how, "retained/escrow" + nodes, &make_bare, &make_retained, on_gpu);
}

}  // namespace escrow::bench
