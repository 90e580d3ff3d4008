// SPDX-License-Identifier: Apache-2.0
// Collects the pointers of kernels, and the bytes of fills and copies.
#include "accesses.hpp"

#include "graphs.hpp"
#include "memory.hpp"

namespace escrow::sim::model {
namespace {

class collector {
 public:
  explicit collector(std::vector<access>& to) : to_(to) {}

  void note(kernel_work const& k) {
    for (std::size_t i = 0; i < k.code->arg_sizes.size(); ++i) {
      using kind = argument_kind;
      kind const what = k.code->kind_of(i);
      if (what == kind::value || k.code->arg_sizes[i] != sizeof(void*)) continue;
      void const* const to = k.args.word(i, 0);
      if (to == nullptr || is_end(k, i)) continue;
      bool const is_const = what != kind::pointer;
      to_.push_back({.begin = reinterpret_cast<std::uintptr_t>(to),
                     .kind = is_const ? access_kind::may_read : access_kind::may_write,
                     .code = k.code,
                     .argument = i,
                     .may_race = place_of(to).type == cudaMemoryTypeDevice});
    }
  }
  void note(copy_work const& c) {
    cudaExtent const& extent = c.shape.extent;
    auto const part = [&](cudaPitchedPtr const& at, cudaPos const& from, memory_place const& place,
                          access_kind kind) {
      if (at.ptr == nullptr || extent.width == 0 || extent.height == 0 || extent.depth != 1) return;
      std::size_t const row = from.z * at.ysize + from.y;
      auto const begin = reinterpret_cast<std::uintptr_t>(at.ptr) + row * at.pitch + from.x;
      note(begin, {extent.width, at.pitch, extent.height}, place, kind);
    };
    part(c.shape.dstPtr, c.shape.dstPos, c.to, access_kind::writes);
    part(c.shape.srcPtr, c.shape.srcPos, c.from, access_kind::reads);
  }
  void note(fill_work const& f) {
    std::size_t const width = f.shape.width * f.shape.elementSize;
    if (width == 0 || f.shape.height == 0) return;
    note(reinterpret_cast<std::uintptr_t>(f.shape.dst), {width, f.shape.pitch, f.shape.height},
         f.to, access_kind::writes);
  }
  template <class Other>
  void note(Other const& /*what*/) {}

 private:
  // Of a range [first, last): behind a pointer of its kind, in the same memory.
  static bool is_end(kernel_work const& k, std::size_t argument) {
    if (argument == 0 || k.code->kind_of(argument - 1) != k.code->kind_of(argument)) return false;
    if (k.code->arg_sizes[argument - 1] != sizeof(void*)) return false;
    auto const* const first = static_cast<std::byte const*>(k.args.word(argument - 1, 0));
    auto const* const last = static_cast<std::byte const*>(k.args.word(argument, 0));
    if (first == nullptr || first >= last) return false;
    void const* const memory = begin_around(last - 1);
    return memory != nullptr && memory == begin_around(first);
  }

  struct rows {
    std::size_t width;
    std::size_t pitch;
    std::size_t count;
  };
  void note(std::uintptr_t begin, rows its, memory_place const& place, access_kind kind) {
    bool const is_one = its.count == 1 || its.pitch <= its.width;
    to_.push_back({.begin = begin,
                   .bytes = its.pitch * (its.count - 1) + its.width,
                   .width = is_one ? 0 : its.width,
                   .pitch = is_one ? 0 : its.pitch,
                   .kind = kind,
                   .may_race = place.type != cudaMemoryTypeUnregistered});
  }

  std::vector<access>& to_;
};

// Whether what has bytes in rows has some in this range.
bool has_some(access const& its, std::uintptr_t begin, std::uintptr_t end) {
  if (end <= its.begin || begin >= its.begin + its.bytes) return false;
  if (its.width == 0) return true;
  // The first row that ends behind `begin`.
  std::uintptr_t const first_end = its.begin + its.width;
  std::size_t const row = begin < first_end ? 0 : (begin - first_end) / its.pitch + 1;
  return its.begin + row * its.pitch < end;
}

}  // namespace

void add_accesses(work const& what, std::vector<access>& to) {
  collector found(to);
  std::visit([&](auto const& each) { found.note(each); }, what);
}

std::vector<access> accesses_of(graph_state const& graph) {
  std::vector<access> all;
  for (auto const& node : graph.nodes) {
    if (node->enabled) add_accesses(node->what, all);
    for (auto const& inner : inner_graphs(*node)) {
      auto const more = accesses_of(*inner);
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  return all;
}

bool overlap(access const& a, access const& b) {
  if (a.width == 0) return has_some(b, a.begin, a.begin + a.bytes);
  for (std::uintptr_t at = a.begin; at < a.begin + a.bytes; at += a.pitch) {
    if (has_some(b, at, at + a.width)) return true;
  }
  return false;
}

bool is_conflict(access const& a, access const& b, bool of_kernels) {
  using kind = access_kind;
  if (!overlap(a, b)) return false;
  if (a.kind >= kind::allocates && b.kind >= kind::allocates) return false;  // nobody has used it
  if (is_exclusive(a.kind) || is_exclusive(b.kind)) return true;
  if (!of_kernels || (a.kind != kind::may_write && b.kind != kind::may_write)) return false;
  if (a.code == nullptr || b.code == nullptr) return true;
  // Two runs of one kernel may add to the same.
  return a.begin == b.begin && (a.kind != b.kind || a.code != b.code);
}

std::string name_of(access const& what) {
  switch (what.kind) {
    case access_kind::reads:
      return "a copy";
    case access_kind::writes:
      return "a fill or copy";
    case access_kind::allocates:
      return "its allocation";
    case access_kind::frees:
      return "its free";
    default:
      return name_of(*what.code, what.argument);
  }
}

}  // namespace escrow::sim::model
