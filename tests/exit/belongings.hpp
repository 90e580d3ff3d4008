// What a program may still have when it ends.
#pragma once

#include <escrow/graph.hpp>
#include <optional>

#include "../pool/pool_fixture.hpp"
#include "owners.hpp"

namespace escrow::test {

/// A stream, a deleter, a pool of that deleter's, a graph that holds a slot and an owner, its exec,
/// and a lease; they end in reverse.
class belongings {
 public:
  belongings() : exec(source), held(pool.claim(stream.get())) {}
  belongings(belongings&&) = delete;

  /// Goes on for longer than the process does, and behind it eager work on the lease.
  void launch() {
    exec.launch(stream.get());
    fill(*held, stream, 2);
  }
  void claim_and_retire() {
    block_lease scratch = pool.claim(stream.get());
    fill(scratch, stream, 3);
    own.retire(stream_ref(stream.get()), probe(make_fate()));
  }

  owned_stream stream = make_stream();
  deleter own;
  block_pool pool{options(), [] { return block{counts()}; }};
  graph source = captured();
  graph_exec exec;
  std::optional<block_lease> held;

 private:
  static tally& counts() {
    static tally& kept = *new tally;  // slots may come back at the very end
    return kept;
  }
  [[nodiscard]] pool_options options() {
    pool_options chosen;
    chosen.deleter = &own;
    return chosen;
  }
  [[nodiscard]] graph captured() {
    return escrow::capture(stream.get(), [&](stream_ref on) {
      constexpr std::uint64_t a_while = 20'000;  // microseconds
      must(launch_sleep(on.get(), a_while));
      block_lease claimed = pool.claim(on);
      fill(claimed, on.get(), 1);
      own.retire(on, probe(make_fate()));
    });
  }
};

}  // namespace escrow::test
