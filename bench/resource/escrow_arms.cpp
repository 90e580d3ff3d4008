// Escrow's memory resource, and the pool below it, for the resource bench.
#include <escrow/memory_resource.hpp>
#include <escrow/pool.hpp>

#include "resource_arms.hpp"

namespace escrow::bench {
namespace {

memory_resource made() {
  return memory_resource(stream_allocator({.slots_max = 4096, .label = "resource"}));
}

}  // namespace

claim_setup scratch_pairs() {
  return by_stream(
      [pool = std::make_shared<scratch_pool>(pool_options{.slots_max = 4096, .label = "scratch"})](
          cudaStream_t on, cudaStream_t) { pool->claim(on, claimed_bytes).release(); });
}

claim_setup escrow_pairs() {
  return pairs_of(made());
}

claim_setup escrow_random() {
  return random_of(made());
}

}  // namespace escrow::bench
