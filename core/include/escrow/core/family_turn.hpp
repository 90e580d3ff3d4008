// One thread at a time where CUDA lets threads corrupt the heap: making and ending graphs and
// execs.
#pragma once

namespace escrow {

// What: a turn of the calling thread among all that make or end members of a family: a graph, its
//   clones, its copies in child nodes, and the execs that were made of it or updated from it. CUDA
//   links each to the one it was made of, and guards the links by nothing: while one of a family
//   ends, or a node of the original is destroyed, no other may end, and none be made of that
//   original (measured: the host's heap is corrupted, in plain CUDA too). Launches, and whatever
//   else is done to graphs, are no concern of it. Escrow takes a turn around all such calls of its
//   own; who makes them plainly, beside others that end graphs or execs of the same family, does
//   so too. Not inside one, and nothing of Escrow inside one that makes or ends graphs or execs.
// Thread safety: any thread. One turn at a time in the process.
// Memory ordering: what happened in earlier turns happens before this one.
// Waits: for calls of CUDA. Most of those are one at a time inside CUDA anyway: as many execs a
//   second are made and destroyed with turns as without (measured, 8 threads). The destroy of an
//   exec with conditional nodes waits for its launches, and turns wait meanwhile, as launches,
//   queries and instantiations of all threads do inside CUDA (measured).
// Lifetime: until the end of the scope, on one thread. Usable while the process exits.
// Capture: capture-safe.
class [[nodiscard]] family_turn {
 public:
  family_turn() noexcept;
  family_turn(family_turn&&) = delete;
  ~family_turn();
};

}  // namespace escrow
