// What building a graph by hand costs: a chain of kernel nodes, each with two owners.
//
// Each form takes turns with plain CUDA calls that keep nothing alive (bare): both build the same
// chain, one right after the other. The time is nanoseconds per node from the empty graph to its
// last node; `of_bare` is its share of the bare one's. Counters say, per node, what sealing costs
// (graph::get(), before anybody else may use the graph) and what destroying the graph costs its
// caller. bare_again is bare once more: what lies between it and 1 is noise.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "build_forms.hpp"
#include "build_measures.hpp"
#include "registering.hpp"
#include "settings.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

// Nanoseconds per node.
struct part_times {
  double build = 0;
  double seal = 0;
  double destroy = 0;
};

template <class Part>
double ns_a_node(Part part) {
  auto const begin = clock::now();
  part();
  return seconds_since(begin) * 1e9 / chain_nodes;
}

part_times times_of(build_form& form, chain_owners const& owners) {
  part_times taken;
  form.begin();
  taken.build = ns_a_node([&] { form.build(owners.all()); });
  taken.seal = ns_a_node([&] { form.seal(); });
  taken.destroy = ns_a_node([&] { form.destroy(); });
  form.settle();
  return taken;
}

// What the graphs of one repetition took, in pairs.
class build_times {
 public:
  // Returns what the form took.
  part_times add(build_form& bare, build_form& form, chain_owners const& owners) {
    bool const is_bare_first = shares_.size() % 2 == 0;
    part_times of_bare;
    if (is_bare_first) of_bare = times_of(bare, owners);
    part_times const of_form = times_of(form, owners);
    if (!is_bare_first) of_bare = times_of(bare, owners);
    shares_.push_back(of_form.build / of_bare.build);
    bare_.push_back(of_bare);
    form_.push_back(of_form);
    return of_form;
  }

  void report(benchmark::State& state) {
    state.counters["of_bare"] = quantile(shares_, 0.5);
    state.counters["build_ns"] = median(form_, &part_times::build);
    state.counters["bare_build_ns"] = median(bare_, &part_times::build);
    state.counters["seal_ns"] = median(form_, &part_times::seal);
    state.counters["destroy_ns"] = median(form_, &part_times::destroy);
    state.counters["bare_destroy_ns"] = median(bare_, &part_times::destroy);
  }

 private:
  static double median(std::vector<part_times> const& all, double part_times::*part) {
    std::vector<double> values;
    values.reserve(all.size());
    for (part_times const& each : all) values.push_back(each.*part);
    return quantile(values, 0.5);
  }

  std::vector<double> shares_;
  std::vector<part_times> bare_, form_;
};

void run(benchmark::State& state, named_build const& which) {
  chain_owners const owners(chain_nodes);
  auto const bare = bare_build().make();
  auto const form = which.make();
  for (build_form* const each : {bare.get(), form.get()}) times_of(*each, owners);  // warms up
  build_times taken;
  for (auto _ : state) {
    require_time();
    state.SetIterationTime(taken.add(*bare, *form, owners).build * 1e-9);
  }
  taken.report(state);
}

}  // namespace

void register_all(settings const& how) {
  for (named_build const& each : other_builds()) {
    add("build/" + std::string(each.name) + "/nodes:" + std::to_string(chain_nodes),
        how.choose(each.times_on_gpu, 2, 1), benchmark::kNanosecond,
        [=](benchmark::State& state) { run(state, each); })
        ->Repetitions(how.choose(9, 3, 1));
  }
  register_owner_bytes(how);
  register_retained_launches(how);
}

}  // namespace escrow::bench
