// Host memory that Escrow takes for what nodes keep: counted by malloc, without what CUDA takes and
// without the owners, which are there before.
#include <benchmark/benchmark.h>

#include <escrow/deleter.hpp>
#include <escrow/graph.hpp>
#include <memory>
#include <string>

#include "build_measures.hpp"
#include "escrow_chain.hpp"
#include "heap_count.hpp"
#include "registering.hpp"
#include "status.hpp"
#include "times.hpp"

namespace escrow::bench {
namespace {

constexpr int owners_a_node = 2;

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

// After building and sealing.
std::int64_t bytes_of(chain_owners const& owners) {
  deleter keeper;
  graph built(keeper);
  counting const now;
  std::int64_t const before = bytes_counted();
  add_escrow_nodes(built, owners.all());
  test::must(built.get() != nullptr, "the graph has a handle");
  return bytes_counted() - before;
}

void run(benchmark::State& state) {
  require_that_counting_works();
  chain_owners const owners(chain_nodes);
  std::int64_t bytes = 0;
  for (auto _ : state) {
    require_time();
    auto const begin = clock::now();
    bytes = bytes_of(owners);
    state.SetIterationTime(seconds_since(begin));
  }
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["bytes_per_owner"] =
      static_cast<double>(bytes) / (owners_a_node * static_cast<double>(chain_nodes));
}

}  // namespace

void register_owner_bytes(settings const& how) {
  add("memory/escrow/nodes:" + std::to_string(chain_nodes), 1, benchmark::kMillisecond, &run)
      ->Repetitions(how.choose(3, 3, 2));  // a count needs no more
}

}  // namespace escrow::bench
