// A random program: a list of operations of several threads, with a form that people can read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace escrow::test {

/// What an operation does. Objects have fixed places, so that an operation means the same when
/// others are taken away; one whose places are empty, or full where they must not be, does nothing.
enum class op : std::uint8_t {
  // the machine and the worker
  step,
  work,
  poll,
  settle,
  drain,
  stop,
  fail_device,
  // pools
  claim,
  claim_captured,
  touch,
  release,
  release_on,
  drop_lease,
  close_pool,
  destroy_pool,
  make_pool,
  // owners
  retire,
  retire_now,
  retire_after,
  retire_graph,
  own,
  disown,
  keep,
  launch_lease,
  share,
  use_shared,
  unshare,
  // captures
  begin,
  begin_into,
  fork,
  join,
  wait_early,
  end,
  invalidate,
  destroy_stream,
  // graphs and execs
  make_graph,
  expose,
  clone,
  child,
  destroy_graph,
  instantiate,
  launch,
  update,
  destroy_exec,
  hoist,
  let_go,
  drop_hoisted,
  // nodes
  add_node,
  add_node_of_lease,
  set_node,
  set_node_of_lease,
  destroy_node,
  exec_set,
  exec_set_of_lease,
  // scratch memory
  claim_scratch,
  close_scratch,
  destroy_scratch,
  // conditional nodes and bodies
  add_conditional,
  add_conditional_inside,
  add_body_node,
  add_body_node_of_lease,
  embed_in_body,
  capture_into_body,
  drop_body,
  // nodes of other kinds
  add_fill,
  add_fill_of_lease,
  add_copy,
  add_join,
  add_edge,
  make_event,
  drop_event,
  add_event,
  add_alloc,
  add_free,
  look,
  // code, and other calls
  load_library,
  unload_library,
  launch_code,
  add_node_of_code,
  set_node_of_code,
  exec_set_of_code,
  upload,
  capture_call,
  move,
  try_claim,
  count
};
inline constexpr std::size_t op_count = static_cast<std::size_t>(op::count);

/// How many places there are of each kind, by the letter that stands for it in the text form.
[[nodiscard]] constexpr unsigned places_of(char letter) {
  switch (letter) {
    case 's':  // streams; s3 is of device 1, s4 the legacy one, s5 the thread's own
      return 6;
    case 'g':  // graphs
    case 'e':  // execs
    case 'l':  // leases
      return 4;
    case 'n':  // nodes
      return 6;
    case 'p':  // pools
    case 'h':  // hoisted
    case 'o':  // owners of nodes and launches
    case 'x':  // objects of make_stream_shared()
    case 'y':  // libraries
    case 'v':  // events
    case 'a':  // allocations of graphs
      return 2;
    case 'm':  // capture modes
    case 'b':  // bodies
      return 3;
    case 'w':  // ways to do it
    case 'z':  // sizes of memory
      return 4;
    case 'k':  // steps
      return 16;
    default:
      return 0;
  }
}

/// What an argument asks for: 'g' is the place of a graph, 'G' an empty one; 'c' is a stream that
/// is being captured, 'r' one that a capture began on, 'i' one that is not captured; 'q' is a node
/// of the graph that the exec in the first argument was made of, 'u' that graph. In the text form
/// they are g, s and n.
[[nodiscard]] constexpr char letter_of(char asked) {
  switch (asked) {
    case 'c':
    case 'r':
    case 'i':
      return 's';
    case 'q':
      return 'n';
    case 'u':
      return 'g';
    default:
      return asked >= 'A' && asked <= 'Z' ? static_cast<char>(asked - 'A' + 'a') : asked;
  }
}

struct op_spec {
  std::string_view name;
  std::string_view arguments;  // a letter for each: see letter_of()
  unsigned weight;             // in programs of all kinds
  bool can_fail;               // a call of CUDA in it may be made to fail
};
[[nodiscard]] op_spec const& spec_of(op kind);

struct operation {
  op kind = op::step;
  std::uint8_t thread = 0;
  std::array<std::uint8_t, 4> arguments{};
  std::uint8_t failing_call = 0;        // the CUDA call of the operation that fails; 0: none
  std::uint8_t failing_allocation = 0;  // the same of the library's allocations
  bool joins = false;                   // it runs together with the one before, if both may
  std::uint64_t passes = 0;  // at which of its switch points it lets others go on: see baton

  bool operator==(operation const&) const = default;
};

struct program {
  static constexpr std::size_t threads_max = 3;

  std::uint64_t seed = 1;  // of the machine's choices
  unsigned slots = 2;      // of each pool
  std::vector<operation> operations;
  // An operation means the places that it names. If not, the next ones that have what it needs: so
  // that programs that are drawn do more. Not part of the text form, which is exact.
  bool is_exact = true;

  bool operator==(program const&) const = default;
};

/// One operation a line.
[[nodiscard]] std::string to_text(program const& written);
[[nodiscard]] std::string to_text(operation const& written);
/// Reads what to_text() wrote; '#' begins a comment. Throws std::runtime_error with the line.
[[nodiscard]] program read_program(std::string_view text);

}  // namespace escrow::test
