// SPDX-License-Identifier: Apache-2.0
// What has a place in a program's world, and what the world knows of it besides.
#pragma once

#include <escrow/graph.hpp>
#include <escrow/nodes.hpp>
#include <escrow/pool.hpp>
#include <list>
#include <variant>

#include "handles.hpp"
#include "things.hpp"

namespace escrow {

template <>
struct kernel_argument_traits<test::shared_token> {
  static int device_value(test::shared_token const& shared) { return shared.share->thing(); }
  static std::shared_ptr<test::token> owner(test::shared_token const& shared) {
    return shared.share;
  }
};

template <>
struct kernel_argument_traits<test::memory_share> : kernel_argument_traits<test::shared_token> {
  static void* device_value(test::memory_share const& shared) { return shared.memory; }
};

template <>
struct kernel_argument_traits<test::token> {
  static int device_value(test::token const& owned) { return owned.thing(); }
};

}  // namespace escrow

namespace escrow::test {

/// What: memory of a stream_allocator, until it is freed.
/// Thread safety: as lease.
class held_address {
 public:
  held_address(stream_allocator& from, void* memory) : from_(&from), memory_(memory) {}

  void* memory() const { return memory_; }
  explicit operator bool() const { return memory_ != nullptr; }
  void record_stream(stream_ref stream) { from_->record_stream(stream, memory_); }
  void release(stream_ref stream) {
    from_->deallocate(stream, memory_);
    memory_ = nullptr;
  }
  void leave_to_graph() {
    from_->leave_to_graph(memory_);
    memory_ = nullptr;
  }
  /// Cannot say whether it has freed it: see is_freed().
  void release_or_report(stream_ref stream) { from_->deallocate_or_report(stream, memory_); }
  /// Frees it once more, which has to be refused if it is freed.
  bool is_freed(stream_ref stream) {
    try {
      release(stream);
    } catch (usage_error const& error) {
      if (std::string_view(error.what()).find("not allocated here") == std::string_view::npos)
        return false;
      memory_ = nullptr;
      return true;
    } catch (std::exception const&) {  // CUDA refuses
    }
    return false;
  }

 private:
  stream_allocator* from_;
  void* memory_;
};

/// What: a lease of a slot of a resource_pool, or of a block of the scratch_pool; or an address.
/// Thread safety: as lease.
class held_lease {
 public:
  template <class Slot>
  explicit held_lease(lease<Slot>&& claimed) : held_(std::move(claimed)) {}
  explicit held_lease(held_address claimed) : held_(claimed) {}

  held_address* address() { return std::get_if<held_address>(&held_); }
  bool is_address() const { return std::holds_alternative<held_address>(held_); }
  lease<device_block>* block() { return std::get_if<lease<device_block>>(&held_); }
  /// Calls `use` with the lease itself, if it is one.
  void with(auto use) {
    if (auto* const slot = std::get_if<lease<token>>(&held_)) use(*slot);
    if (block() != nullptr) use(*block());
  }
  bool is_held() const {
    return std::visit([](auto const& held) { return static_cast<bool>(held); }, held_);
  }

 private:
  std::variant<lease<token>, lease<device_block>, held_address> held_;
};

/// The kernel that takes such a lease in the place of its last argument.
inline auto kernel_for(lease<token> const& /*held*/) {
  return work_kernel_that_keeps();
}
inline auto kernel_for(lease<device_block> const& /*held*/) {
  return work_kernel_of_memory();
}

struct stream_place {
  cudaStream_t handle = nullptr;
  int device = 0;
  int mark = 0;  // the last that its work sets
};
struct lease_place {
  std::optional<held_lease> held;
  int slot = 0;
  int value = 0;
  std::size_t stream = 0;
  std::uint64_t capture = 0;
  struct other_stream {
    std::size_t stream;
    bool is_used;           // false: the lease may know it, but no work on it uses the slot
    bool is_eager = false;  // it was not captured then
  };
  std::vector<other_stream> others;
  int nodes = 0;              // that have a share
  void* memory = nullptr;     // of a block
  bool is_local = false;      // its claimer or stream may keep the slot
  bool was_kept = false;      // before the claim, on the same stream
  bool was_perhaps = false;   // or beside it: a claimer was there
  std::uint64_t claimer = 0;  // that it was claimed through, by serial
  bool is_over = false;       // its capture, as the library knows
  bool is_in_graphs = false;  // of other captures, or of nodes
};
/// How far the work that uses a lease is known to be done when its owner is destroyed: nothing is
/// known; either is right; all is done; or all up to a mark is before a record.
struct known_uses {
  enum class kind : std::uint8_t { none, either, done, recorded } is = kind::none;
  int mark = 0;
};
/// What: a lease that a deleter or a host function ends, and an owner, which is kept as long.
class retired_lease {
 public:
  /// Called when the lease begins to end, on whatever thread, with as many marks as it has streams.
  /// Must not allocate: an allocation of that thread may be made to fail.
  using listener = std::function<void(retired_lease const&, std::list<int>&&)>;

  retired_lease(token&& owner, lease_place&& place, listener ends)
      : ends_(std::move(ends)),
        marks_(1 + place.others.size()),
        place_(std::move(place)),
        owner_(std::move(owner)) {}
  retired_lease(retired_lease&&) = delete;
  ~retired_lease() {
    if (owner_) ends_(*this, std::move(marks_));
  }

  lease_place const& place() const { return place_; }
  int thing() const { return owner_.thing(); }
  /// Only while nothing else may end it.
  held_lease& held() { return *place_.held; }

  known_uses known;  // when the owner is destroyed

  /// The deleter did not take it.
  std::pair<token, lease_place> take_back() { return {std::move(owner_), std::move(place_)}; }

 private:
  listener ends_;
  std::list<int> marks_;
  lease_place place_;
  token owner_;
};
/// What: what a request owns: one lease, or two.
/// Thread safety: none.
class request {
 public:
  std::vector<std::unique_ptr<retired_lease>> leases;
  bool is_plain = false;  // retire() sees that it is a lease, as it sees it of a pointer to one

  explicit operator bool() const { return is_plain; }
  void before_retire(stream_ref stream) {
    leases.front()->held().with([stream](auto& held) { held.before_retire(stream); });
  }
};
struct claimer_place {
  std::optional<claimer<token>> own;
  std::optional<scratch_claimer> memory;  // or this
  std::uint64_t serial = 0;               // another for each claimer
  std::size_t pool = 0;                   // its place, if it is still there
  std::uint64_t home = 0;                 // the pool's serial
  std::size_t stream = 0;
  bool is_closed = false;   // the pool, or about to be
  bool was_closed = false;  // the call is over
  bool has_launch = false;  // a graph was launched on the stream since the last claim
  bool is_there() const { return own.has_value() || memory.has_value(); }
};
struct graph_place {
  std::optional<graph> own;
  cudaGraph_t plain = nullptr;
  std::uint64_t serial = 0;  // another for each graph
  unsigned shape = 0;        // counts changes of nodes and edges
  unsigned changes = 0;      // of nodes' owners too
  bool is_built = false;     // with the program's deleter: nodes with owners may be added
  bool is_exposed = false;
  bool is_captured_into = false;
  bool is_hoisted = false;
  bool is_parent = false;
  bool is_single = false;   // CUDA allows one exec, and no copy
  bool was_copied = false;  // and while a copy of before lives, no exec
  bool has_calls = false;   // or events: no body may have them
  bool has_memory = false;
  bool has_events = false;
  bool was_instantiated = false;
  bool is_loose = false;  // a copy of a graph with a condition that no node has is, or was, in it
  bool is_there() const { return own.has_value() || plain != nullptr; }
};
/// A node that does not run in an exec.
struct disabled_node {
  cudaGraphNode_t handle = nullptr;  // by which the exec knows it
  int id = 0;
};
struct exec_place {
  std::optional<graph_exec> own;
  cudaGraphExec_t plain = nullptr;
  std::uint64_t made_of = 0;  // the serial of the graph that it was created from
  unsigned shape = 0;         // the graph's then
  int nodes_then = 0;         // the last node's id then
  bool was_updated = false;
  bool has_other_nodes = false;  // than its graph had: of another one, or a later shape
  bool of_hoisted = false;
  bool is_conditional = false;
  bool has_memory = false;
  bool has_events = false;
  bool is_of_graph = false;  // not of a handle
  bool has_copies = false;
  std::vector<disabled_node> off;
  bool is_end_unknown = false;  // a launch failed: what it used may stay until the next
  int behind = 0;               // a mark before its last launch
  int launched = 0;             // a mark after its last launch, if there was one
  // Instead of `own`: its stream and thread, and whether it may not have recorded a launch.
  std::optional<stream_launcher> bound;
  std::size_t stream = 0;
  std::size_t thread = 0;
  bool is_due = false;
  bool is_there() const { return own.has_value() || plain != nullptr || bound.has_value(); }
};
/// A hoisted between enter() and leave(), as inside of its launch().
struct turn_place {
  std::size_t stream;
  std::size_t thread;
};
struct member_place {
  std::optional<exec_set::member> which;
  int behind = 0;    // as an exec's
  int launched = 0;  // the same
};
enum class node_kind : std::uint8_t { kernel, call, fill, rows, copy, record, wait, empty, child };
struct node_place {
  node handle;
  std::size_t graph = 0;
  std::uint64_t serial = 0;
  int id = 0;  // 0: none
  node_kind is = node_kind::kernel;
  bool is_in_body = false;
  int conditional = 0;      // of the body that it is in
  std::uint64_t child = 0;  // the serial of the graph that it runs a copy of
  bool can_be_disabled() const {
    using enum node_kind;
    return is == kernel || is == fill || is == rows || is == copy;
  }
  bool is_call() const { return is == node_kind::call; }
  bool is_event() const { return is == node_kind::record || is == node_kind::wait; }
};
struct body_place {
  std::optional<body_graph> own;
  std::size_t graph = 0;
  std::uint64_t serial = 0;  // the graph's
  int conditional = 0;       // the number of its node
  node of = {};              // that node
};
struct conditional_place {
  std::uint64_t serial = 0;  // the graph's
  int inside = 0;            // the one in whose body it is, or else 0
  condition tested;
};
struct allocation_place {
  std::optional<allocation> made;
  node user;  // the kernel that uses the memory
  std::uint64_t serial = 0;
};
struct library_place {
  std::optional<kernel> found;  // which keeps it
  int thing = 0;
  bool is_foreign = false;  // loaded by plain calls
};
/// What a node is given, and where: a new node, one of a graph, or one of an exec.
struct node_target {
  graph_builder_ref const* at = nullptr;
  node const* changed = nullptr;
  graph_exec* exec = nullptr;
  launch_config shape{.grid = {4}};  // clusters of 2 and of 4 blocks fit
  node made{};

  void put(auto kind) {
    if (at != nullptr) {
      made = at->add(std::move(kind));
    } else if (exec != nullptr) {
      set(*exec, *changed, std::move(kind));
    } else {
      changed->set(std::move(kind));
    }
  }
};
struct node_content {
  node_kind is;
  entries kept;  // by the node
  std::function<void(node_target&)> put;
  piece_of_work* work = nullptr;  // that it does
  std::vector<cudaLaunchAttribute> attributes = {};
  bool is_wrong = false;  // CUDA refuses it
};
struct open_capture {
  std::uint64_t id;
  std::size_t origin;
  std::size_t thread;
  bool is_relaxed;
  std::optional<std::size_t> into;  // a graph that was there
};
struct retired_with_event {
  token owner;
  owned_event event;
};

}  // namespace escrow::test
