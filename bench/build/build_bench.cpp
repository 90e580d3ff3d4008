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
  explicit chain_owners(int nodes) {
    void* memory = nullptr;
    auto const count = static_cast<std::size_t>(nodes);
    test::must(cudaMalloc(&memory, 2 * count * sizeof(int)));
    memory_.reset(static_cast<int*>(memory));
    auto const share = [this](std::size_t at) {
      return std::shared_ptr<int>(memory_.get() + at, [](int*) {});
    };
    all_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) all_.push_back({share(2 * i), share(2 * i + 1)});
  }

  [[nodiscard]] std::span<node_owners const> all() const noexcept { return all_; }

 private:
  struct free_memory {
    void operator()(int* memory) const noexcept { static_cast<void>(cudaFree(memory)); }
  };

  std::unique_ptr<int, free_memory> memory_;
  std::vector<node_owners> all_;
};

// What a plain node keeps, before it is added: nothing, or a share of each owner by a user object.
enum class keeping { nothing, user_objects };

// It takes two pointers, and does nothing.
void* two_pointers_kernel() {
  return test::kernel_address(test::kernel_id::two_pointers);
}

void add_plain_nodes(cudaGraph_t graph, std::span<node_owners const> owners, keeping what) {
  cudaGraphNode_t last = nullptr;
  for (node_owners const& each : owners) {
    if (what == keeping::user_objects) {
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

void add_escrow_nodes(graph& to, std::span<node_owners const> owners) {
  kernel const launched(two_pointers_kernel());
  launch_config const config;
  graph_builder_ref last = escrow::build(to);
  for (node_owners const& each : owners) {
    last = last.add(kernel_node(launched, config, each.first, each.second));
  }
}

void add_escrow_nodes_without_owners(graph& to, std::span<node_owners const> owners) {
  kernel const launched(two_pointers_kernel());
  launch_config const config;
  graph_builder_ref last = to;
  for (node_owners const& each : owners) {
    last = last.add(kernel_node(launched, config, each.first.get(), each.second.get()));
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

template <keeping what>
class plain_builder final : public builder {
 public:
  void begin() override { graph_ = test::make_graph(); }
  void build(std::span<node_owners const> owners) override {
    add_plain_nodes(graph_, owners, what);
  }
  void destroy() override { graph_.reset(); }

 private:
  test::owned_graph graph_;
};

// With a deleter that has never kept anything, as for the first graph that a program builds, or
// with one that has.
template <auto add_nodes, bool is_cold>
class escrow_builder final : public builder {
 public:
  void begin() override {
    if (!deleter_) deleter_.emplace();
    graph_.emplace(*deleter_);
  }
  void build(std::span<node_owners const> owners) override { add_nodes(*graph_, owners); }
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

using bare_builder = plain_builder<keeping::nothing>;

constexpr build_arm arms[]{
    {.name = "bare_again", .setup = &make<bare_builder>, .times_max = 4},
    {.name = "escrow", .setup = &make<escrow_builder<&add_escrow_nodes, true>>, .times_max = 6},
    {.name = "escrow_warm",
     .setup = &make<escrow_builder<&add_escrow_nodes, false>>,
     .times_max = 4},
    {.name = "escrow_no_owners",
     .setup = &make<escrow_builder<&add_escrow_nodes_without_owners, false>>,
     .times_max = 4},
    {.name = "user_objects", .setup = &make<plain_builder<keeping::user_objects>>, .times_max = 1},
};

// What building, sealing and destroying took, nanoseconds per node.
struct part_times {
  turns build, seal, destroy;
};

// Builds with the bare builder and with the other, in turns. Returns what building took.
double take(builder& bare, builder& form, chain_owners const& owners, part_times& to) {
  auto const ns_a_node = [](auto part) { return us_of(part) * 1e3 / chain_nodes; };
  struct {
    double build, seal, destroy;
  } of_bare{}, of_form{};
  auto const once = [&](builder& each, auto& taken) {
    each.begin();
    taken.build = ns_a_node([&] { each.build(owners.all()); });
    taken.seal = ns_a_node([&] { each.seal(); });
    taken.destroy = ns_a_node([&] { each.destroy(); });
    each.settle();
    return taken.build;
  };
  double const ns =
      to.build.add([&] { return once(bare, of_bare); }, [&] { return once(form, of_form); });
  to.seal.add([&] { return of_bare.seal; }, [&] { return of_form.seal; });
  to.destroy.add([&] { return of_bare.destroy; }, [&] { return of_form.destroy; });
  return ns;
}

void run(benchmark::State& state, build_arm const& which) {
  chain_owners const owners(chain_nodes);
  bare_builder bare;
  auto const form = which.setup();
  part_times warm_up, taken;
  static_cast<void>(take(bare, *form, owners, warm_up));
  for (auto _ : state) {
    require_time();
    state.SetIterationTime(take(bare, *form, owners, taken) * 1e-9);
  }
  state.counters["of_bare"] = taken.build.share();
  state.counters["build_ns"] = taken.build.other();
  state.counters["bare_build_ns"] = taken.build.plain();
  state.counters["seal_ns"] = taken.seal.other();
  state.counters["destroy_ns"] = taken.destroy.other();
  state.counters["bare_destroy_ns"] = taken.destroy.plain();
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
  add_escrow_nodes(built, owners.all());
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

struct with_owners final : with_deleter {
  chain_owners owners{launched_nodes};
};

std::unique_ptr<relaunch_form> make_bare(cudaStream_t) {
  auto const around = std::make_shared<with_owners>();
  test::owned_graph const built = test::make_graph();
  add_plain_nodes(built, around->owners.all(), keeping::nothing);
  return form_of(built, around);
}

std::unique_ptr<relaunch_form> make_retained(cudaStream_t stream) {
  auto const around = std::make_shared<with_owners>();
  graph built(around->deleter);
  add_escrow_nodes(built, around->owners.all());
  auto form = form_of(built, around);
  test::must(form->facts == make_bare(stream)->facts, "both graphs have the same nodes");
  return form;
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
