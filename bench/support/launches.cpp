// SPDX-License-Identifier: Apache-2.0
// Rows and bursts of launches.
#include "launches.hpp"

#include "handles.hpp"

namespace escrow::bench {
namespace {

void launch(relaunch_form const& form, cudaStream_t stream, int launches) {
  if (form.launch_many) return form.launch_many(stream, launches);
  for (int i = 0; i < launches; ++i) form.launch(stream);
}

double row_us(relaunch_form const& form, cudaStream_t stream, int launches) {
  return us_of([&] {
           launch(form, stream, launches);
           test::must(cudaStreamSynchronize(stream));
         }) /
         launches;
}

double burst_us(relaunch_form const& form, cudaStream_t stream, int launches) {
  double const us = us_of([&] { launch(form, stream, launches); });
  test::must(cudaStreamSynchronize(stream));
  return us / launches;
}

void measure_launches(benchmark::State& state, form_maker const& make_bare,
                      form_maker const& make_form, sizes const& size) {
  constexpr int burst_max = 16;
  test::owned_stream const stream = test::make_stream();
  turns rows, steady, bursts;
  repeat(state, [&] {
    relaunch_form bare = make_bare(stream), form = make_form(stream);
    for (relaunch_form const* const each : {&bare, &form}) {  // warms up
      each->upload(stream);
      static_cast<void>(row_us(*each, stream, std::max(size.row / 4, 1)));
    }
    auto const in_turns = [&](turns& taken, auto measure, int launches) {
      return taken.add_around([&] { return measure(bare, stream, launches); },
                              [&] { return measure(form, stream, launches); });
    };
    double const us = in_turns(rows, &row_us, size.row);
    in_turns(steady, &burst_us, size.steady);
    for (int i = 0; i < size.bursts; ++i) {
      in_turns(bursts, &burst_us, std::min(burst_max, size.steady));
    }
    for (auto const& [name, count] : form.facts) state.counters[name] = count;
    form.end();
    bare.end();
    return us;
  });
  state.counters.insert({{"launches_per_s", 1e6 / rows.other()},
                         {"bare_us", rows.plain()},
                         {"host_us", steady.other()},
                         {"host_burst_us", bursts.other()},
                         {"throughput_of_bare", 1 / rows.share()},
                         {"host_of_bare", steady.share()},
                         {"host_burst_of_bare", bursts.share()},
                         {"host_launches", size.steady}});
}

}  // namespace

graph_facts facts_of(cudaGraph_t graph) {
  graph_facts facts{{"memory_nodes", 0}};
  std::size_t count = 0;
  test::must(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  test::must(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t const node : nodes) {
    cudaGraphNodeType type{};
    test::must(cudaGraphNodeGetType(node, &type));
    bool const is_memory = type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree;
    ++facts[is_memory ? "memory_nodes" : "nodes_type_" + std::to_string(type)];
  }
  std::size_t edges = 0;
  test::must(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  facts["edges"] = static_cast<int>(edges);
  return facts;
}

relaunch_form form_of(cudaGraph_t graph, std::function<void()> settle) {
  auto const exec = std::make_shared<test::owned_exec>(test::instantiate(graph));
  return {
      .settle = std::move(settle),
      .launch = [=](cudaStream_t stream) { test::must(cudaGraphLaunch(*exec, stream)); },
      .upload = [=](cudaStream_t stream) { test::must(cudaGraphUpload(*exec, stream)); },
      .facts = facts_of(graph),
  };
}

relaunch_form form_of(graph const& graph, std::function<void()> settle) {
  auto const exec = std::make_shared<graph_exec>(graph);
  test::must(exec->is_bare(), "the exec is bare");
  return {
      .settle = std::move(settle),
      .launch = [=](cudaStream_t stream) { exec->launch(stream); },
      .upload = [=](cudaStream_t stream) { exec->upload(stream); },
      .facts = facts_of(graph.get()),
  };
}

void add_launches(settings const& how, std::string const& name, form_maker const& bare,
                  form_maker const& form, sizes const& gpu) {
  sizes const size{.instances = how.choose(gpu.instances, 1),
                   .row = how.choose(gpu.row, 2),
                   .steady = how.choose(gpu.steady, 2),
                   .bursts = how.choose(gpu.bursts, 1)};
  add(name, {size.instances, repetitions(how)}, &measure_launches, bare, form, size);
}

}  // namespace escrow::bench
