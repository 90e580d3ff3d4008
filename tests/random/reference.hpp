// The reference model: what must be alive, and what may be, as the public contracts have it. Plain
// sets, and nothing of the library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace escrow::test {

/// One thing that a graph, an exec, a capture or a hoisted keeps.
struct entry {
  int thing = 0;
  int generation = 0;     // of a slot: the holder that it was handed to
  int node = 0;           // the node that it is kept for; 0: the graph as a whole
  bool known = true;      // false: came with a plain copy, which hoisting cannot find
  bool by_exec = false;   // set in the exec itself
  bool launched = false;  // the exec was launched with it
  bool on_body = false;   // on the graph of a body itself, which a plain handle does not lead to
};
using entries = std::vector<entry>;

[[nodiscard]] bool has(entries const& list, int thing);
/// Takes the entries for which `is_taken` holds out of a list; returns them.
entries take(entries& list, std::function<bool(entry const&)> const& is_taken);
/// The same for those of a node.
entries take_node(entries& list, int node);
void append(entries& to, entries const& from);

/// What a graph and the like keep.
struct contents {
  entries held;       // must be alive
  entries lingering;  // may be
  entries needed;     // what the kernels use, whether it is held or not
  // Graphs, by serial, of which this is a plain copy: what they get later may be alive as long as
  // this, since a plain copy shares their reference sets.
  std::vector<std::uint64_t> grows_with;
  // The same of an exec that was instantiated from a handle, which does not lead to bodies: it
  // shares the sets of those.
  std::vector<std::uint64_t> grows_with_bodies_of;

  void clear() { *this = {}; }
  void append(contents const& more);
};

/// What: the things of a run with all that keeps them: the test's own handles, captures, graphs,
/// execs, hoisteds, launches in flight of execs that are destroyed, and work on streams, by marks
/// that kernels set.
/// Thread safety: none; one operation at a time, and the machine between them.
class reference {
 public:
  enum class kind : std::uint8_t { owner, slot };
  struct thing_state {
    kind is = kind::owner;
    int handles = 0;         // in the test's hands: a share, a lease
    bool gone = false;       // destroyed
    std::vector<int> marks;  // of the work that uses it
    bool is_pooled = false;  // a slot of a pool that is there: may stay
  };

  [[nodiscard]] int add(kind is);
  [[nodiscard]] thing_state& state_of(int thing) {
    return things_.at(static_cast<std::size_t>(thing));
  }
  [[nodiscard]] int size() const { return static_cast<int>(things_.size()); }
  /// A mark that no kernel has set yet.
  [[nodiscard]] int add_mark(int device);
  void set_mark(int mark) { marks_.at(static_cast<std::size_t>(mark)).done = true; }
  [[nodiscard]] bool is_done(int mark) const {
    return marks_.at(static_cast<std::size_t>(mark)).done;
  }
  /// The work of a device was dropped.
  void drop_work(int device);
  /// The thing is used by the work up to the mark.
  void pend(int thing, int mark);
  [[nodiscard]] bool is_pending(int thing) const;

  [[nodiscard]] contents& capture_of(std::uint64_t id) { return captures_[id]; }
  void forget_capture(std::uint64_t id) { captures_.erase(id); }
  /// A device was lost, and with it perhaps captures.
  void doubt_captures();

  /// An exec changes: what it held stays for the launches in flight, which have not ended before
  /// `behind`, a mark.
  void keep_for_launches(entries const& held, int behind);
  /// The graph of that serial got `more`: so may have its plain copies.
  void grow(std::uint64_t serial, entries const& more);
  /// The machine is idle and the worker has nothing left: no launch is in flight.
  void settle() { in_flight_.clear(); }
  [[nodiscard]] bool anything_held() const;

  /// Why the thing must be alive; empty if it need not be.
  [[nodiscard]] std::string why_alive(int thing) const;
  [[nodiscard]] bool may_live(int thing) const;
  [[nodiscard]] bool is_held_by_graphs(int thing) const;
  /// Things that are not destroyed, of those that must be (`are_due`), or of all.
  [[nodiscard]] std::vector<int> left(bool are_due) const;

  std::array<contents, 4> graphs;
  std::array<contents, 4> execs;
  std::array<contents, 2> hoisted;
  std::map<std::uint64_t, contents> orphans;  // of graphs of which only bodies are left, by serial

 private:
  struct mark_state {
    bool done = false;
    int device = 0;
  };
  struct flight {
    entries held;
    int behind;
  };

  template <class Look>
  void each_contents(Look look) const;

  std::vector<thing_state> things_;
  std::vector<mark_state> marks_{mark_state{true, 0}};  // the first is always done
  std::map<std::uint64_t, contents> captures_;
  std::vector<flight> in_flight_;
};

}  // namespace escrow::test
