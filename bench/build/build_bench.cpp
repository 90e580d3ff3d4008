// What building a graph by hand costs: a chain of kernel nodes, each with two owners.
//
// Each form takes turns with plain CUDA calls that keep nothing alive (bare): both build the same
// chain, one right after the other. The time is nanoseconds per node from the empty graph to its
// last node; `of_bare` is its share of the bare one's. Counters say, per node, what sealing costs
// (graph::get(), before any other code may use the graph) and what destroying the graph costs its
// caller. bare_again is bare once more: what lies between it and 1 is noise.
#include <array>
#include <cstdint>
#include <escrow/nodes.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "forms.hpp"
#include "graphs.hpp"
#include "heap_count.hpp"
#include "memory.hpp"

namespace escrow::bench {
namespace {

constexpr int chain_nodes = 10'000;

// The two arguments of one node: shares of device memory.
struct node_owners {
  std::shared_ptr<int> first, second;
};

// What: owners for a chain of nodes, no two of which are the same; all are of one allocation, so
//   that neither making nor destroying them is a call of CUDA.
// Lifetime: must outlive what shares the owners.
class chain_owners {
 public:
  explicit chain_owners(int nodes) : memory_(2 * static_cast<std::size_t>(nodes)) {
    auto const share = [this](int at) {
      return std::shared_ptr<int>(memory_.data() + at, [](int*) {});
    };
    for (int i = 0; i < nodes; ++i) all_.push_back({share(2 * i), share(2 * i + 1)});
  }

  [[nodiscard]] std::span<node_owners const> all() const noexcept { return all_; }

 private:
  test::device_ints memory_;
  std::vector<node_owners> all_;
};

// It takes two pointers, and does nothing.
void* two_pointers_kernel() {
  return test::kernel_address(test::kernel_id::two_pointers);
}

template <bool has_user_objects>
void add_plain_nodes(cudaGraph_t graph, std::span<node_owners const> owners) {
  cudaGraphNode_t last = nullptr;
  for (node_owners const& each : owners) {
    if (has_user_objects) {
      keep_share(graph, each.first);
      keep_share(graph, each.second);
    }
    int* first = each.first.get();
    int* second = each.second.get();
    std::array<void*, 2> values{&first, &second};
    cudaKernelNodeParams params{};
    params.func = two_pointers_kernel();
    params.gridDim = params.blockDim = dim3(1, 1, 1);
    params.kernelParams = values.data();
    cudaGraphNode_t const after = last;
    test::must(cudaGraphAddKernelNode(&last, graph, &after, after == nullptr ? 0 : 1, &params));
  }
}

template <bool has_owners>
void add_escrow_nodes(graph& to, std::span<node_owners const> owners) {
  kernel const launched(two_pointers_kernel());
  launch_config const config;
  graph_builder_ref last = to;
  for (node_owners const& each : owners) {
    if constexpr (has_owners) {
      last = last.add(kernel_node(launched, config, each.first, each.second));
    } else {
      last = last.add(kernel_node(launched, config, each.first.get(), each.second.get()));
    }
  }
}

// Builds one graph after the other.
class builder {
 public:
  virtual ~builder() = default;

  // An empty graph, and what else is there before the first node.
  virtual void begin() = 0;
  // Adds a node for each pair of owners, each behind the one before.
  virtual void build(std::span<node_owners const> owners) = 0;
  // Makes the graph ready for plain CUDA calls.
  virtual void seal() {}
  // Destroys the graph.
  virtual void destroy() = 0;
  // Waits for what other threads do after that, a bounded time.
  virtual void settle() {}
};

template <bool has_user_objects>
class plain_builder final : public builder {
 public:
  void begin() override { graph_ = test::make_graph(); }
  void build(std::span<node_owners const> owners) override {
    add_plain_nodes<has_user_objects>(graph_, owners);
  }
  void destroy() override { graph_.reset(); }

 private:
  test::owned_graph graph_;
};

// With a deleter that has never kept anything, as for the first graph that a program builds, or
// with one that has.
template <bool has_owners, bool is_cold>
class escrow_builder final : public builder {
 public:
  void begin() override {
    if (!deleter_) deleter_.emplace();
    graph_.emplace(*deleter_);
  }
  void build(std::span<node_owners const> owners) override {
    add_escrow_nodes<has_owners>(*graph_, owners);
  }
  void seal() override { test::must(graph_->get() != nullptr, "the graph has a handle"); }
  void destroy() override { graph_.reset(); }
  void settle() override {
    test::must(deleter_->drain_for(settle_max), "all owners are destroyed");
    test::must(deleter_->stats().in_graphs == 0, "no graph holds an owner");
    if (is_cold) deleter_.reset();
  }

 private:
  std::optional<escrow::deleter> deleter_;
  std::optional<graph> graph_;
};

using build_arm = arm<std::unique_ptr<builder>()>;

template <class Builder>
std::unique_ptr<builder> make() {
  return std::make_unique<Builder>();
}

using bare_builder = plain_builder<false>;

constexpr build_arm arms[]{
    {"bare_again", &make<bare_builder>, true, 4},
    {"escrow", &make<escrow_builder<true, true>>, true, 6},
    {"escrow_warm", &make<escrow_builder<true, false>>, true, 4},
    {"escrow_no_owners", &make<escrow_builder<false, false>>, true, 4},
    {"user_objects", &make<plain_builder<true>>, true, 1},
};

// Nanoseconds per node.
struct part_times {
  double build, seal, destroy;
};

part_times build_once(builder& by, chain_owners const& owners) {
  auto const ns_a_node = [](auto part) { return us_of(part) * 1e3 / chain_nodes; };
  part_times taken{};
  by.begin();
  taken.build = ns_a_node([&] { by.build(owners.all()); });
  taken.seal = ns_a_node([&] { by.seal(); });
  taken.destroy = ns_a_node([&] { by.destroy(); });
  by.settle();
  return taken;
}

void run(benchmark::State& state, build_arm const& which) {
  chain_owners const owners(chain_nodes);
  bare_builder bare;
  auto const form = which.setup();
  for (builder* const each : {static_cast<builder*>(&bare), form.get()}) build_once(*each, owners);
  turns taken;
  std::vector<double> seal, destroy, bare_destroy;
  auto const building = [&](builder& by, std::vector<double>& destroys) {
    part_times const times = build_once(by, owners);
    if (&by == form.get()) seal.push_back(times.seal);
    destroys.push_back(times.destroy);
    return times.build;
  };
  for (auto _ : state) {
    require_time();
    state.SetIterationTime(1e-9 * taken.add([&] { return building(bare, bare_destroy); },
                                            [&] { return building(*form, destroy); }));
  }
  state.counters["of_bare"] = taken.share();
  state.counters["build_ns"] = taken.other();
  state.counters["bare_build_ns"] = taken.plain();
  state.counters["seal_ns"] = quantile(seal, 0.5);
  state.counters["destroy_ns"] = quantile(destroy, 0.5);
  state.counters["bare_destroy_ns"] = quantile(bare_destroy, 0.5);
}

// Counts the calling thread's allocations during its life.
class counting {
 public:
  counting() noexcept { count_on_this_thread(true); }
  counting(counting&&) = delete;
  ~counting() { count_on_this_thread(false); }
};

// A count that does not move would prove nothing.
void require_that_counting_works() {
  constexpr std::int64_t bytes = 1000;
  std::int64_t const before = bytes_counted();
  counting const now;
  auto allocated = std::make_unique<std::byte[]>(bytes);
  benchmark::DoNotOptimize(allocated.get());
  test::must(bytes_counted() >= before + bytes, "what is allocated is counted");
  {
    inside_cuda const inside;
    auto of_cuda = std::make_unique<std::byte[]>(bytes);
    benchmark::DoNotOptimize(of_cuda.get());
    test::must(bytes_counted() < before + 2 * bytes, "what CUDA allocates is not counted");
  }
  allocated.reset();
  test::must(bytes_counted() == before, "what is given back is counted");
}

// Host memory that Escrow takes for what nodes keep, after building and sealing: without what CUDA
// takes and without the owners, which are there before.
std::int64_t bytes_of(chain_owners const& owners) {
  escrow::deleter deleter;
  graph built(deleter);
  counting const now;
  std::int64_t const before = bytes_counted();
  add_escrow_nodes<true>(built, owners.all());
  test::must(built.get() != nullptr, "the graph has a handle");
  return bytes_counted() - before;
}

void run_owner_bytes(benchmark::State& state) {
  require_that_counting_works();
  chain_owners const owners(chain_nodes);
  std::int64_t bytes = 0;
  for (auto _ : state) {
    require_time();
    state.SetIterationTime(us_of([&] { bytes = bytes_of(owners); }) * 1e-6);
  }
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["bytes_per_owner"] = static_cast<double>(bytes) / (2 * chain_nodes);
}

constexpr int launched_nodes = 64;

struct with_owners {
  escrow::deleter deleter;
  chain_owners owners{launched_nodes};
};

// A form that keeps `around` to its end.
relaunch_form form_with(std::shared_ptr<with_owners> const& around) {
  relaunch_form made;
  made.owed = [=] { return owed_by(around->deleter); };
  return made;
}

relaunch_form make_bare(cudaStream_t) {
  auto const around = std::make_shared<with_owners>();
  test::owned_graph const built = test::make_graph();
  add_plain_nodes<false>(built, around->owners.all());
  return form_of(built, form_with(around));
}

relaunch_form make_retained(cudaStream_t stream) {
  auto const around = std::make_shared<with_owners>();
  graph built(around->deleter);
  add_escrow_nodes<true>(built, around->owners.all());
  relaunch_form made = form_of(built, form_with(around));
  test::must(made.facts == make_bare(stream).facts, "both graphs have the same nodes");
  return made;
}

}  // namespace

void register_all(settings const& how) {
  for (build_arm const& each : arms) {
    add("build/" + std::string(each.name) + "/nodes:" + std::to_string(chain_nodes),
        {how.choose(each.times_max, 2, 1), how.choose(9, 3, 1)}, benchmark::kNanosecond,
        [=](benchmark::State& state) { run(state, each); });
  }
  add("memory/escrow/nodes:" + std::to_string(chain_nodes), {1, how.choose(3, 3, 2)},
      benchmark::kMillisecond, &run_owner_bytes);  // a count needs no more
  constexpr sizes on_gpu{.instances = 3, .row = 100, .steady = 200, .bursts = 2};
  std::string const nodes = "/nodes:" + std::to_string(launched_nodes);
  add_launches(how, "retained/bare_again" + nodes, &make_bare, &make_bare, on_gpu);
  add_launches(how, "retained/escrow" + nodes, &make_bare, &make_retained, on_gpu);
}

}  // namespace escrow::bench
