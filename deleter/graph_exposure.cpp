// SPDX-License-Identifier: Apache-2.0
// Which graphs of a sharing group may be launched without Escrow: for parking.
#include <algorithm>
#include <optional>
#include <string>

#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/launch_order.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

namespace {

std::string name_of(std::uint64_t id) {
  return id == 0 ? std::string("a graph built by hand") : "graph " + std::to_string(id);
}

constexpr char const* use_known_launches =
    "destroy the graph, and plain execs and copies of it (a graph_exec may stay), or hoist() it, "
    "and launch inside hoisted::launch()";

}  // namespace

bool graph_registry::is_hidden(cudaGraph_t graph) const noexcept {
  entry const* const its = find(graph);
  if (its == nullptr) return false;
  if (its->is_owned) return !its->is_exposed;
  if (its->part_of == nullptr) return false;
  entry const* const whole = find(its->part_of);
  return whole == nullptr || (whole->is_owned && !whole->is_exposed);  // none: both were destroyed
}

void graph_registry::expose_sets(entry& of) noexcept {
  for (reference_set* const each : of.sets) each->is_exposed_ = true;
}

void graph_registry::expose(cudaGraph_t graph) noexcept {
  std::lock_guard const lock(mutex_);
  auto const found = entries_.find(graph);
  if (found == entries_.end() || std::exchange(found->second.is_exposed, true)) return;
  expose_sets(found->second);
  if (!found->second.has_parts) return;
  for (auto& [handle, its] : entries_) {
    if (its.part_of == graph) expose_sets(its);
  }
}

void graph_registry::note_device_launches(deferred_releases const& held) noexcept {
  std::lock_guard const lock(mutex_);
  for (auto const& each : held) each.set->is_launched_by_gpu_ = true;
}

std::optional<graph_registry::unknown_launches> graph_registry::unknown_launches_of(
    group_order const& group) const {
  std::lock_guard const lock(mutex_);
  for (reference_set const* const each : sets_) {
    if (each->order_.get() != &group || each->is_closed()) continue;
    std::string const name = name_of(each->id_);
    if (each->keeper_ != nullptr) {
      std::string of = "a pool";
      for (cudaGraph_t const graph : each->graphs_) {
        entries_.at(graph).leases.for_each([&](auto const& lease) {
          if (&lease->origin->group == &group) of = "the pool \"" + lease->origin->pool + "\"";
        });
      }
      return {{name + " holds slots of " + of + " that is held until closed",
               "destroy what was created from the graph, and close the pool", true}};
    }
    if (each->is_launched_by_gpu_) {
      return {{"an exec of " + name + " was instantiated for device launch",
               "destroy it and the graph, and instantiate without that flag"}};
    }
    if (each->unknown_hoists_ != 0) {
      return {{name + " was hoisted, and its launches are not known",
               "launch inside hoisted::launch(), or release the hoisted graph", true}};
    }
    if (each->object_ == nullptr || each->is_off_graphs()) continue;
    bool const is_known = !each->graphs_.empty();
    if (!is_known || each->is_exposed_) {
      return {{"an exec or a copy of " + name + ", made by plain CUDA, may exist",
               use_known_launches, !is_known}};
    }
    auto const is_shown = [this](cudaGraph_t graph) { return !is_hidden(graph); };
    if (std::ranges::any_of(each->graphs_, is_shown)) {
      return {
          {name + " is being captured, or is of a capture by plain CUDA: an exec of it may exist",
           use_known_launches, true}};
    }
  }
  return std::nullopt;
}

}  // namespace escrow::inline v0_2
