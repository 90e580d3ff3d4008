// Host time per launch of a graph that was built by hand, with two owners on each of its 64 nodes;
// measured as the relaunch bench does, in turns with a bare exec of the same graph without owners.
#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <memory>
#include <optional>
#include <string>

#include "build_forms.hpp"
#include "build_measures.hpp"
#include "escrow_chain.hpp"
#include "launch_times.hpp"
#include "plain_graph.hpp"
#include "registering.hpp"

namespace escrow::bench {
namespace {

constexpr int nodes = 64;
constexpr sizes sizes_on_gpu{.instances = 3, .row = 100, .steady = 200, .bursts = 2};

std::unique_ptr<relaunch_form> make_bare(chain_owners const& owners) {
  test::owned_graph const built = test::make_graph();
  add_plain_nodes(built, owners.all());
  return std::make_unique<plain_graph>(built);
}

class retained_graph final : public relaunch_form {
 public:
  explicit retained_graph(chain_owners const& owners) {
    graph built(deleter_);
    add_escrow_nodes(built, owners.all());
    exec_.emplace(built);
    test::must(exec_->is_bare(), "the exec is bare");
    facts_ = facts_of(built.get());
  }

  void launch(cudaStream_t stream) override { exec_->launch(stream); }
  void upload(cudaStream_t stream) override { exec_->upload(stream); }
  [[nodiscard]] graph_facts facts() const override { return facts_; }
  [[nodiscard]] std::size_t end() override {
    exec_.reset();
    static_cast<void>(deleter_.drain_for(end_wait_max));
    return deleter_.stats().in_graphs;
  }

 private:
  escrow::deleter deleter_;
  graph_facts facts_;
  std::optional<graph_exec> exec_;
};

std::unique_ptr<relaunch_form> make_retained(chain_owners const& owners) {
  return std::make_unique<retained_graph>(owners);
}

using maker = std::unique_ptr<relaunch_form> (*)(chain_owners const& owners);

void run(benchmark::State& state, maker make, sizes const& size) {
  chain_owners const owners(nodes);
  test::owned_stream const stream = test::make_stream();
  relaunch_times taken(size);
  std::size_t owed = 0;
  for (auto _ : state) {
    require_time();
    pair_of_forms pair(stream, make_bare(owners), make(owners));
    test::must(pair.bare->facts() == pair.form->facts(), "both graphs have the same nodes");
    state.SetIterationTime(taken.add(pair));
    for (auto const& [name, count] : pair.form->facts()) state.counters[name] = count;
    owed += pair.end();
  }
  taken.report(state);
  state.counters["destructors_owed"] = static_cast<double>(owed);
}

}  // namespace

void register_retained_launches(settings const& how) {
  struct form {
    char const* name;
    maker make;
  };
  sizes const size = sizes_on_gpu.chosen(how);
  for (form const& each : {form{"bare_again", &make_bare}, form{"escrow", &make_retained}}) {
    add("retained/" + std::string(each.name) + "/nodes:" + std::to_string(nodes), size.instances,
        benchmark::kMicrosecond, [=](benchmark::State& state) { run(state, each.make, size); })
        ->Repetitions(how.choose(9, 3, 1));
  }
}

}  // namespace escrow::bench
