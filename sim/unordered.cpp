// SPDX-License-Identifier: Apache-2.0
// Looks for two nodes with the same memory that may run at the same time.
#include "unordered.hpp"

#include "graphs.hpp"
#include "operands.hpp"
#include "state.hpp"

#include <escrow/sim/control.hpp>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace escrow::sim::model {
namespace {

constexpr std::size_t nodes_max = 4096;

//                  of a fill or a copy, whose bytes are known    of a kernel's pointer
//     to read      reads                                         may_read: it points to const
//     to write     writes                                        may_write
enum class access_kind : std::uint8_t { reads, writes, may_read, may_write };

struct access {
  std::uintptr_t begin = 0;
  std::size_t bytes = 1;  // from there on; of a pointer only that it is there
  access_kind kind = access_kind::reads;
  std::size_t node = 0;  // the position in the outermost graph
  kernel_code const* code = nullptr;
  std::size_t argument = 0;
};

std::string name_of(access const& what) {
  if (what.code == nullptr) return what.kind == access_kind::writes ? "a fill or copy" : "a copy";
  return name_of(*what.code, what.argument);
}

// A row after another, of which each begins so many bytes behind the one before.
std::size_t span_of(std::size_t width, std::size_t pitch, std::size_t rows) {
  return rows > 1 ? pitch * (rows - 1) + width : width;
}

// What the nodes of a graph use, and whether some are for events.
class accesses {
 public:
  void add(graph_state const& graph) {
    for (auto const& node : graph.nodes) {
      if (!is_inside_) node_ = node->position;
      if (node->enabled) std::visit([this](auto const& each) { note(each); }, node->what);
    }
  }
  [[nodiscard]] bool has_events() const { return has_events_; }
  [[nodiscard]] std::vector<access> sorted() && {
    std::ranges::sort(all_, {}, &access::begin);
    return std::move(all_);
  }

 private:
  void note(kernel_work const& k) {
    for (std::size_t i = 0; i < k.code->arg_sizes.size(); ++i) {
      using kind = argument_kind;
      kind const what = k.code->kind_of(i);
      if (what == kind::value || k.code->arg_sizes[i] != sizeof(void*)) continue;
      void const* const to = k.args.word(i, 0);
      if (to == nullptr) continue;
      bool const is_const = what != kind::pointer;
      all_.push_back({.begin = reinterpret_cast<std::uintptr_t>(to),
                      .kind = is_const ? access_kind::may_read : access_kind::may_write,
                      .node = node_,
                      .code = k.code,
                      .argument = i});
    }
  }
  void note(copy_work const& c) {
    cudaExtent const& extent = c.shape.extent;
    auto const part = [&](cudaPitchedPtr const& at, access_kind kind) {
      if (at.ptr == nullptr || extent.width == 0 || extent.depth != 1) return;
      note(at.ptr, span_of(extent.width, at.pitch, extent.height), kind);
    };
    part(c.shape.dstPtr, access_kind::writes);
    part(c.shape.srcPtr, access_kind::reads);
  }
  void note(fill_work const& f) {
    std::size_t const width = f.shape.width * f.shape.elementSize;
    if (width != 0 && f.shape.height != 0)
      note(f.shape.dst, span_of(width, f.shape.pitch, f.shape.height), access_kind::writes);
  }
  void note(void const* at, std::size_t bytes, access_kind kind) {
    all_.push_back({reinterpret_cast<std::uintptr_t>(at), bytes, kind, node_, nullptr, 0});
  }
  void note(record_work const& /*what*/) { has_events_ = true; }
  void note(wait_work const& /*what*/) { has_events_ = true; }
  void note(child_work const& its) { add_inside(*its.graph); }
  void note(conditional_work const& its) {
    for (auto const& body : its.bodies) add_inside(*body);
  }
  template <class Other>
  void note(Other const& /*what*/) {}

  void add_inside(graph_state const& graph) {
    bool const was_inside = std::exchange(is_inside_, true);
    add(graph);
    is_inside_ = was_inside;
  }

  std::vector<access> all_;
  std::size_t node_ = 0;
  bool is_inside_ = false;
  bool has_events_ = false;
};

// Which nodes of a sorted graph come before which.
class order {
 public:
  explicit order(graph_state const& graph) : rows_(graph.nodes.size()) {
    std::size_t const words = (rows_.size() + 63) / 64;
    for (auto const& node : graph.nodes) {
      auto& row = rows_[node->position];
      row.resize(words);
      for (cudaGraphNode_t const before : node->before) {
        std::size_t const at = before->position;
        row[at / 64] |= std::uint64_t{1} << (at % 64);
        for (std::size_t i = 0; i < words; ++i) row[i] |= rows_[at][i];
      }
    }
  }
  [[nodiscard]] bool is_between(std::size_t one, std::size_t other) const {
    auto const [first, second] = std::minmax(one, other);
    return one == other || ((rows_[second][first / 64] >> (first % 64)) & 1U) != 0;
  }

 private:
  std::vector<std::vector<std::uint64_t>> rows_;  // a bit for each node that comes before
};

bool is_chain(graph_state const& graph) {
  return std::ranges::all_of(graph.nodes, [](auto const& node) {
    return node->position == 0 || std::ranges::any_of(node->before, [&](cudaGraphNode_t before) {
             return before->position + 1 == node->position;
           });
  });
}

// Of two that overlap: whether one writes what the other uses.
bool is_conflict(access const& a, access const& b, bool of_kernels) {
  using kind = access_kind;
  if (a.kind == kind::writes || b.kind == kind::writes) return true;
  if (!of_kernels || (a.kind != kind::may_write && b.kind != kind::may_write)) return false;
  if (a.code == nullptr || b.code == nullptr) return true;
  // Two runs of one kernel may add to the same.
  return a.begin == b.begin && (a.kind != b.kind || a.code != b.code);
}

[[noreturn]] void refuse(char const* call, access const& a, access const& b) {
  if (b.kind == access_kind::writes && a.kind != access_kind::writes) refuse(call, b, a);
  auto const* const shared = reinterpret_cast<void const*>(std::max(a.begin, b.begin));
  give_up(std::string(call) + ": no edge of the graph orders " + name_of(a) + ", and " +
          name_of(b) + ", which both use " + text_of(shared) +
          ": give one of the two nodes the other as a dependency, or capture their work on one "
          "stream; sim::let_nodes_share(true) permits it");
}

}  // namespace

void refuse_unordered(char const* call, graph_state const& graph) {
  if (asked_audits() == audits::off || the().may_nodes_share) return;
  for (auto const& node : graph.nodes) {
    for (auto const& inner : inner_graphs(*node)) refuse_unordered(call, *inner);
  }
  if (graph.nodes.size() < 2 || graph.nodes.size() > nodes_max || is_chain(graph)) return;
  accesses found;
  found.add(graph);
  if (found.has_events()) return;
  std::vector<access> const all = std::move(found).sorted();
  order const known(graph);
  bool const of_kernels = asked_audits() == audits::all;
  for (auto a = all.begin(); a != all.end(); ++a) {
    for (auto b = a + 1; b != all.end() && b->begin - a->begin < a->bytes; ++b) {
      if (is_conflict(*a, *b, of_kernels) && !known.is_between(a->node, b->node))
        refuse(call, *a, *b);
    }
  }
}

}  // namespace escrow::sim::model

void escrow::sim::let_nodes_share(bool may) {
  auto& s = model::the();
  std::lock_guard const lock(s.mutex);
  s.may_nodes_share = may;
}
