// What memory costs the host that is allocated and freed through a memory resource (cuda::mr):
// Escrow's, RMM's, and the pool below Escrow's.
//
// A time is microseconds per allocation with its deallocation, of the slowest thread. No kernel
// runs in between; see the claim bench.
//
// resource/pairs/threads:T/streams:S: T threads with S streams each, in turn; memory of one size is
// freed before the next allocation.
// resource/random/...: each thread has 64 allocations of 256 bytes to 4 MiB, and replaces one after
// the other: the pattern of RMM's own benchmarks.
// Rounds of all arms in turns: ARM_us and ARM_of_OTHER as in the claim bench.
// resource_turns/escrow_over_scratch/on_threads:T: pairs, of a resource and by leases.
// cub_relaunch/FORM: launches of a graph with a reduction of CUB; see cub_relaunch.cu.
#include <escrow/memory_resource.hpp>
#include <escrow/pool.hpp>
#include <memory>

#include "claim_arms.hpp"
#include "resource_arms.hpp"

namespace escrow::bench {
namespace {

// Memory by its lease, without a resource.
claim_setup scratch_pairs() {
  return by_stream(
      [pool = std::make_shared<scratch_pool>(pool_options{.slots_max = 4096, .label = "scratch"})](
          cudaStream_t on, cudaStream_t) { pool->claim(on, claimed_bytes).release(); });
}

memory_resource made() {
  return memory_resource(stream_allocator({.slots_max = 4096, .label = "resource"}));
}
claim_setup escrow_pairs() {
  return pairs_of(made());
}
claim_setup escrow_random() {
  return random_of(made());
}

std::vector<claim_arm> const& pair_arms() {
  static std::vector<claim_arm> const all{
      {"escrow", &escrow_pairs, true, many},
      {"rmm_pool", &rmm_pool_pairs, false, some},
      {"rmm_pool_on_escrow", &rmm_pool_on_escrow_pairs, false, some},
      {"rmm_arena", &rmm_arena_pairs, false, some},
      {"rmm_cuda_async", &rmm_cuda_async_pairs, false, some},
  };
  return all;
}

std::vector<claim_arm> const& random_arms() {
  static std::vector<claim_arm> const all{
      {"escrow", &escrow_random, true, many},
      {"rmm_pool", &rmm_pool_random, false, some},
      {"rmm_pool_on_escrow", &rmm_pool_on_escrow_random, false, some},
      {"rmm_arena", &rmm_arena_random, false, some},
      {"rmm_cuda_async", &rmm_cuda_async_random, false, some},
  };
  return all;
}

constexpr arm_ratio ratios[]{
    {"rmm_pool", "escrow"},
    {"rmm_pool_on_escrow", "escrow"},
    {"rmm_arena", "escrow"},
    {"rmm_cuda_async", "escrow"},
};

void add_pattern(settings const& how, std::string const& name, std::vector<claim_arm> const& arms) {
  auto const present = present_arms(arms, how);
  int const pairs = how.choose(many, 64, 4);
  auto const add_load = [&](claim_load const& load) {
    add("resource/" + name + "/threads:" + std::to_string(load.threads) +
            "/streams:" + std::to_string(load.streams),
        {how.choose(15, 4, 1), how.choose(5, 3, 1)}, benchmark::kMicrosecond,
        [=](benchmark::State& state) { run_arms(state, present, ratios, load, pairs); });
  };
  for (int const threads : {1, 2, 4, 8, 16}) add_load({.threads = threads});
  for (int const threads : {1, 8}) add_load({.threads = threads, .streams = 4});
}

}  // namespace

void register_all(settings const& how) {
  add_pattern(how, "pairs", pair_arms());
  add_pattern(how, "random", random_arms());
  for (int const threads : {1, 8}) {
    add("resource_turns/escrow_over_scratch/on_threads:" + std::to_string(threads),
        {how.choose(200, 40, 2)}, benchmark::kMicrosecond, [=](benchmark::State& state) {
          run_in_turns(state, scratch_pairs(), escrow_pairs(), {.threads = threads},
                       how.choose(many, 64, 4));
        });
  }
  if (&register_cub_relaunch != nullptr) register_cub_relaunch(how);
}

}  // namespace escrow::bench
