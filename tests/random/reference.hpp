// SPDX-License-Identifier: Apache-2.0
// The reference model: what must be alive, and what may be, as the public contracts have it. Plain
// sets, and nothing of the library.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
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
  bool claimed = false;   // a slot, in a capture: launches that use it are ordered
};
using entries = std::vector<entry>;

struct piece_of_work;
/// What the kernel of a node, or a host callable, does; it runs once a launch.
struct node_work {
  int node = 0;
  piece_of_work* work = nullptr;
};

inline bool has(entries const& list, int thing) {
  return std::ranges::find(list, thing, &entry::thing) != list.end();
}

/// Whether the list has the thing as it was when `one` was added.
inline bool has_same(entries const& list, entry const& one) {
  return std::ranges::any_of(list, [&one](entry const& each) {
    return each.thing == one.thing && each.generation == one.generation;
  });
}

/// Takes the entries for which `is_taken` holds out of a list; returns them.
inline entries take(entries& list, std::function<bool(entry const&)> const& is_taken) {
  auto const rest = std::stable_partition(list.begin(), list.end(), std::not_fn(is_taken));
  entries taken(rest, list.end());
  list.erase(rest, list.end());
  return taken;
}

/// The same for those of a node.
inline entries take_node(entries& list, int node) {
  return take(list, [node](entry const& each) { return each.node == node; });
}

inline void append(entries& to, entries const& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// What a graph and the like keep.
struct contents {
  entries held;       // must be alive
  entries lingering;  // may be
  entries replaced;   // may be, until the graph is next used: of changed and destroyed nodes
  entries needed;     // what the kernels use, whether it is held or not
  std::vector<node_work> works;  // of nodes outside of bodies that were built by hand
  // Graphs, by serial, of which this is a plain copy: what they get later may be alive as long as
  // this, since a plain copy shares their reference sets.
  std::vector<std::uint64_t> grows_with;
  // The same of an exec that was instantiated from a handle, which does not lead to bodies: it
  // shares the sets of those.
  std::vector<std::uint64_t> grows_with_bodies_of;

  void clear() { *this = {}; }
  void append(contents const& more) {
    test::append(held, more.held);
    test::append(lingering, more.lingering);
    test::append(needed, more.needed);
    works.insert(works.end(), more.works.begin(), more.works.end());
    grows_with.insert(grows_with.end(), more.grows_with.begin(), more.grows_with.end());
  }
  /// From now on the node does this, or nothing that is known.
  void run(int node, piece_of_work* work) {
    std::erase_if(works, [node](node_work const& each) { return each.node == node; });
    if (work != nullptr) works.push_back({node, work});
  }
  /// All that is of the graph as a whole is the node's.
  void give_to(int node) {
    for (entries* const list : {&held, &lingering, &needed})
      for (entry& each : *list) each.node = node;
    for (node_work& each : works) each.node = node;
  }
  /// The node keeps these, and its kernel uses them.
  void give(int node, entries const& kept, bool by_exec = false) {
    for (entry each : kept) {
      each.node = node;
      each.by_exec = by_exec;
      held.push_back(each);
      needed.push_back(each);
    }
  }
};

/// What the model knows of one thing: an owner, or a slot, which may be a block of memory.
struct thing_state {
  enum class kind : std::uint8_t { owner, slot } is = kind::owner;
  int handles = 0;            // in the test's hands: a share, a lease
  bool gone = false;          // destroyed
  std::list<int> marks;       // of the work that uses it
  bool may_be_ahead = false;  // an event of an earlier lease, until the machine is idle

  static constexpr std::size_t no_pool = ~std::size_t{0};
  std::size_t pool = no_pool;  // of a slot, if it is there
  std::uint64_t home = 0;      // the pool by serial
  std::size_t bytes = 0;       // of a block
  bool is_pooled = false;      // may stay: the pool is there
  bool is_kept = false;        // may stay: it was released where a claimer may keep it
  std::size_t kept_on = 0;     // on that stream
  bool is_claimers = false;    // by a claimer, or else by the stream itself
  // The worker has ended its lease, until its next claim: may stay, and is leaked with its pool.
  bool is_deferred = false;
  unsigned awaited = 0;      // streams of a retired lease, until the pool is given them
  unsigned deferred_on = 0;  // the same, also where that is not certain
  static constexpr unsigned never = 1U << 31U;  // one of these was destroyed
  unsigned checks = 0;  // for unused blocks, 1 when it is released; 0: not known
  /// Whether the pool may have leaked it, and make another.
  bool may_be_lost() const { return is_deferred && (deferred_on & never) != 0; }
  bool leased = false;
  std::uint64_t capture = 0;  // that it was claimed in; 0: eagerly
  bool is_private = false;    // its last lease ended outside of that capture
  bool is_left = false;       // or left it to the graph
  bool is_let_go = false;     // a hoisted had it, and released it behind work
  bool is_leaked = false;     // a hoisted had it, and ended without a release
  int generation = 0;         // counts its holders; those of one capture count once
  int value = 0;              // what the last fill wrote
  int open = 0;               // the lease whose use goes on on the device; 0: none
  bool racy = false;          // nothing orders its uses, and nothing promises to
};

/// What: the things of a run with all that keeps them: the test's own handles, captures, graphs,
/// execs, hoisteds, launches in flight of execs that are destroyed, and work on streams, by marks
/// that kernels set.
/// Thread safety: none; one operation at a time, and the machine between them.
class reference {
 public:
  int add(thing_state::kind is) {
    things_.emplace_back().is = is;
    return size() - 1;
  }
  thing_state& state_of(int thing) { return things_.at(static_cast<std::size_t>(thing)); }
  thing_state const& state_of(int thing) const {
    return things_.at(static_cast<std::size_t>(thing));
  }
  int size() const { return static_cast<int>(things_.size()); }
  /// A mark that no kernel has set yet.
  int add_mark(int device) {
    marks_.push_back({false, device});
    return static_cast<int>(marks_.size()) - 1;
  }
  void set_mark(int mark) { marks_.at(static_cast<std::size_t>(mark)).done = true; }
  bool is_done(int mark) const { return marks_.at(static_cast<std::size_t>(mark)).done; }
  /// The work of a device was dropped.
  void drop_work(int device) {
    for (mark_state& each : marks_) each.done = each.done || each.device == device;
  }
  /// The thing is used by the work up to the mark.
  void pend(int thing, int mark) {
    if (!is_done(mark)) state_of(thing).marks.push_back(mark);
  }
  /// The same without an allocation: these are pending, or done.
  void pend(int thing, std::list<int>&& marks) noexcept {
    std::list<int>& all = state_of(thing).marks;
    all.splice(all.end(), std::move(marks));
  }
  bool is_pending(int thing) const {
    return !std::ranges::all_of(state_of(thing).marks, [&](int mark) { return is_done(mark); });
  }

  contents& capture_of(std::uint64_t id) { return captures_[id]; }
  void forget_capture(std::uint64_t id) { captures_.erase(id); }
  /// A device was lost, and with it perhaps captures.
  void doubt_captures() {
    for (auto& [id, captured] : captures_)
      append(captured.lingering, std::exchange(captured.held, {}));
  }

  /// An exec changes: what it held stays for the launches in flight, which have not ended before
  /// `behind`, a mark.
  void keep_for_launches(entries const& held, int behind) {
    entries unused = held;
    entries const used = take(unused, [](entry const& each) { return each.launched; });
    in_flight_.push_back({used, behind});
    in_flight_.push_back({unused, 0});
  }
  /// An exec ends: what must be alive stays for its launches in flight, and what may be alive may.
  void end_exec(contents& kept, int behind) {
    entries hard = kept.held;
    std::erase_if(hard, [&](entry const& each) { return has(kept.lingering, each.thing); });
    keep_for_launches(hard, behind);
    in_flight_.push_back({kept.held, 0});
    in_flight_.push_back({kept.lingering, 0});
    kept.clear();
  }
  /// The graph of that serial got `more`: so may have its plain copies.
  void grow(std::uint64_t serial, entries const& more) {
    entries rest = more;
    entries const of_bodies = take(rest, [](entry const& each) { return each.on_body; });
    each_contents(*this, [&](contents& in, auto...) {
      bool const grows = std::ranges::count(in.grows_with, serial) != 0;
      bool const bodies_grow = std::ranges::count(in.grows_with_bodies_of, serial) != 0;
      if (grows) append(in.lingering, more);
      if (!grows && bodies_grow) append(in.lingering, of_bodies);
    });
  }
  /// The machine is idle and the worker has nothing left: no launch is in flight.
  void settle() {
    in_flight_.clear();
    for (thing_state& each : things_) each.may_be_ahead = false;
  }
  bool anything_held() const {
    bool found = !in_flight_.empty();
    each_contents(*this, [&](contents const& in, auto...) {
      found = found || !in.held.empty() || !in.lingering.empty() || !in.replaced.empty();
    });
    return found;
  }

  /// Why the thing must be alive; empty if it need not be.
  std::string why_alive(int thing) const {
    thing_state const& state = state_of(thing);
    if (state.handles > 0) return "the caller has it";
    if (is_pending(thing)) return "work on a stream uses it";
    std::string why;
    each_contents(*this, [&](contents const& in, char const* what, std::size_t number) {
      if (has(in.held, thing)) why = what + std::to_string(number);
    });
    for (flight const& each : in_flight_)
      if (!is_done(each.behind) && has(each.held, thing)) why = "a launch in flight uses it";
    return why;
  }
  bool may_live(int thing) const {
    thing_state const& state = state_of(thing);
    return state.handles > 0 || state.is_pooled || state.is_kept || state.is_deferred ||
           is_pending(thing) || is_held_by_graphs(thing);
  }
  bool is_held_by_graphs(int thing) const {
    bool found =
        std::ranges::any_of(in_flight_, [&](flight const& e) { return has(e.held, thing); });
    each_contents(*this, [&](contents const& in, auto...) {
      found = found || has(in.held, thing) || has(in.lingering, thing) || has(in.replaced, thing);
    });
    return found;
  }
  /// How many slots wait for a record after the worker, or have been leaked for want of it.
  std::size_t count_deferred() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        things_, [](thing_state const& each) { return each.is_deferred && !each.gone; }));
  }
  /// Things that are not destroyed, of those that must be (`are_due`), or of all.
  std::vector<int> left(bool are_due) const {
    std::vector<int> found;
    for (int thing = 0; thing < size(); ++thing)
      if (!state_of(thing).gone && !(are_due && may_live(thing))) found.push_back(thing);
    return found;
  }

  std::array<contents, 4> graphs;
  std::array<contents, 4> execs;
  std::array<contents, 4> members;  // of the exec_set
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

  /// `in`: a reference, which may be const.
  static void each_contents(auto& in, auto look) {
    auto const all = [&](auto& list, char const* what) {
      for (std::size_t i = 0; i < list.size(); ++i) look(list[i], what, i);
    };
    all(in.graphs, "graph g");
    all(in.execs, "exec e");
    all(in.members, "member f");
    all(in.hoisted, "hoisted h");
    for (auto& [id, captured] : in.captures_) look(captured, "capture ", id);
    for (auto& [serial, left] : in.orphans) look(left, "a body of graph ", serial);
  }

  std::vector<thing_state> things_;
  std::vector<mark_state> marks_{mark_state{true, 0}};  // the first is always done
  std::map<std::uint64_t, contents> captures_;
  std::vector<flight> in_flight_;
};

}  // namespace escrow::test
