// SPDX-License-Identifier: Apache-2.0
// Two pieces of work with the same memory, of which neither waits for the other.
#include "uses.hpp"

#include "state.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace escrow::sim::model {
namespace {

std::string name_of(work const& what) {
  if (auto const* const k = std::get_if<kernel_work>(&what))
    return "kernel \"" + k->code->name + "\"";
  return std::holds_alternative<copy_work>(what) ? "a copy" : "a fill";
}

}  // namespace

void note_uses(op_ptr const& enqueued, std::vector<memory_use> uses) {
  for (memory_use const& each : uses) the().users[each.lease.memory].push_back(enqueued.get());
  enqueued->uses = std::move(uses);
}

void forget_uses(op& done) noexcept {
  for (memory_use const& each : done.uses) {
    auto const found = the().users.find(each.lease.memory);
    if (found == the().users.end()) continue;
    std::erase(found->second, &done);
    if (found->second.empty()) the().users.erase(found);
  }
  done.uses.clear();
}

void refuse_overtaking(op const& begun) {
  for (memory_use const& each : begun.uses) {
    auto const has_it = [&each](running_launch const& its) {
      return its.memory == each.lease.memory && its.last < each.lease.number;
    };
    if (std::ranges::any_of(the().running_launches, has_it)) {
      give_up(
          "work on a stream: " + name_of(begun.what) + " uses memory of the pool \"" + each.of +
          "\", where the launch of a graph that had it has not ended: launch by graph_exec or "
          "hoisted::launch(), or end the exec, or release what hoist() returned, behind the last "
          "launch");
    }
    for (op const* const other : the().users[each.lease.memory]) {
      auto const is_earlier = [&each](memory_use const& its) {
        return its.lease.memory == each.lease.memory && its.lease.number < each.lease.number;
      };
      if (std::ranges::none_of(other->uses, is_earlier)) continue;
      give_up(
          "work on a stream: " + name_of(begun.what) + " uses memory of the pool \"" + each.of +
          "\", where " + name_of(other->what) +
          ", of an earlier lease of that memory, has not ended, and nothing orders the two: tell "
          "a lease by record_stream() of each other stream before its work is enqueued, and "
          "release it behind the last");
    }
  }
}

void begin_launch(exec_state const& begun, std::vector<memory_use> const& memory) {
  auto& running = the().running_launches;
  for (memory_use const& each : memory) {
    running_launch const its{each.lease.memory, &begun, each.lease.last};
    for (running_launch const& other : running) {
      if (other.memory != its.memory || other.exec == its.exec) continue;
      give_up("launches of two execs overlap that use memory which both have from \"" + each.of +
              "\", a pool or a sharing group, and nothing orders the two: launch by graph_exec or "
              "hoisted::launch(), or on one stream");
    }
    running.push_back(its);
  }
}

void end_launch(exec_state const& ended, std::vector<memory_use> const& memory) noexcept {
  auto& running = the().running_launches;
  for (memory_use const& each : memory) {
    auto const found = std::ranges::find_if(running, [&](running_launch const& its) {
      return its.memory == each.lease.memory && its.exec == &ended;
    });
    if (found != running.end()) running.erase(found);
  }
}

}  // namespace escrow::sim::model
