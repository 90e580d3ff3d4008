// SPDX-License-Identifier: Apache-2.0
// Who holds the memory of the process, in words and as JSON.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "escrow/internal/json.hpp"
#include "escrow/pool/memory_report.hpp"

namespace escrow::inline v0_2 {

namespace {

std::string mebibytes(std::size_t bytes) {
  std::array<char, 48> text{};
  static_cast<void>(std::snprintf(text.data(), text.size(), "%.1f MiB",
                                  static_cast<double>(bytes) / (std::size_t{1} << 20)));
  return text.data();
}

std::string count_of(std::size_t count, char const* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string text_of(pool_memory const& pool) {
  std::string text = "pool \"" + pool.label + "\" on device " + std::to_string(pool.device);
  if (!pool.source.empty()) text += ", of " + pool.source;
  if (!pool.group.empty()) text += ", in group \"" + pool.group + "\"";
  if (pool.is_closed) text += ", closed";
  text += ": " + count_of(pool.slots, "slot");
  if (pool.slots_waiting != 0) text += ", " + std::to_string(pool.slots_waiting) + " of them wait";
  text += ", " + to_json(pool.bytes) + "\n";
  for (holder const& each : pool.holders) {
    text += "  \"" + each.label + "\": " + describe(each) + "\n";
  }
  return text;
}

std::string text_of(group_layout const& group) {
  std::string text = "group \"" + group.label + "\" on device " + std::to_string(group.device) +
                     (group.is_parked ? ": parked, " : ": ") + mebibytes(group.bytes) +
                     " mapped, " + count_of(static_cast<std::size_t>(group.execs), "exec") + "\n";
  for (graph_layout const& graph : group.graphs) {
    std::size_t leased = 0;
    for (arena_claim const& each : graph.claims) leased += each.is_leased ? 1 : 0;
    text += graph.id == 0 ? std::string("  sharing_group::run()")
                          : "  graph " + std::to_string(graph.id);
    text += ": " + mebibytes(graph.extent) + ", " + count_of(graph.claims.size(), "claim") + ", " +
            std::to_string(leased) + " of them leased\n";
  }
  return text;
}

std::string text_of(graph_memory const& graph) {
  std::string text =
      (graph.id == 0 ? "a graph built by hand" : "graph " + std::to_string(graph.id));
  if (graph.graphs == 0) text += ", of which an exec or a plain copy is left,";
  text += " holds " + count_of(graph.slots, "slot") + ", " + mebibytes(graph.bytes);
  if (graph.arena_bytes != 0) text += ", " + mebibytes(graph.arena_bytes) + " of them in an arena";
  if (graph.owners != 0) text += ", and " + count_of(graph.owners, "owner");
  return text + "\n";
}

std::string json_of_number(std::optional<std::uint64_t> number) {
  return number ? std::to_string(*number) : "null";
}

std::string json_of_line(source_location const& where) {
  return where.line() == 0 ? "null" : json_text(detail::line_text({}, where));
}

std::string json_of_holder(holder const& which) {
  char const* const kind = which.waits_for != nullptr ? "stream"
                           : which.is_lease           ? "lease"
                           : which.capture_id != 0    ? "graph"
                                                      : "node";
  return json_of({{"kind", json_text(kind)},
                  {"label", json_text(which.label)},
                  {"capture_id", which.capture_id},
                  {"slots", which.slots},
                  {"where", json_of_line(which.where)}});
}

std::string json_of_pool(pool_memory const& pool) {
  return json_of({{"label", json_text(pool.label)},
                  {"device", std::to_string(pool.device)},
                  {"source", json_text(pool.source)},
                  {"group", json_text(pool.group)},
                  {"is_closed", pool.is_closed ? "true" : "false"},
                  {"slots", pool.slots},
                  {"slots_waiting", pool.slots_waiting},
                  {"bytes", to_json(pool.bytes)},
                  {"holders", json_array(pool.holders, json_of_holder)}});
}

std::string json_of_claim(arena_claim const& claim) {
  return json_of({{"begin", claim.begin},
                  {"end", claim.end},
                  {"pool", json_text(claim.pool)},
                  {"where", json_of_line(claim.where)},
                  {"claimed", json_of_number(claim.claimed)},
                  {"released", json_of_number(claim.released)},
                  {"is_leased", claim.is_leased ? "true" : "false"}});
}

std::string json_of_group(group_layout const& group) {
  auto const of_graph = [](graph_layout const& graph) {
    return json_of({{"id", graph.id},
                    {"extent", graph.extent},
                    {"claims", json_array(graph.claims, json_of_claim)}});
  };
  return json_of({{"label", json_text(group.label)},
                  {"device", std::to_string(group.device)},
                  {"bytes", group.bytes},
                  {"is_parked", group.is_parked ? "true" : "false"},
                  {"execs", std::to_string(group.execs)},
                  {"graphs", json_array(group.graphs, of_graph)}});
}

}  // namespace

std::string describe(memory_report const& report) {
  std::string text;
  for (device_memory const& its : report.devices) {
    text += "device " + std::to_string(its.device) + ": " + mebibytes(its.reserved) +
            " reserved, " + mebibytes(its.reserved_in_use) + " of them in use; " +
            mebibytes(its.ranges) + " in ranges, " + mebibytes(its.arenas) + " in arenas\n";
  }
  for (auto const& each : report.pools) text += text_of(each);
  for (auto const& each : report.groups) text += text_of(each);
  for (auto const& each : report.graphs) text += text_of(each);
  return text + count_of(report.execs, "exec") + ", whose own device memory CUDA does not tell";
}

std::string to_json(memory_report const& report) {
  auto const of_device = [](device_memory const& its) {
    return json_of({{"device", static_cast<std::uint64_t>(its.device)},
                    {"reserved", its.reserved},
                    {"reserved_in_use", its.reserved_in_use},
                    {"ranges", its.ranges},
                    {"arenas", its.arenas}});
  };
  auto const of_graph = [](graph_memory const& graph) {
    return json_of({{"id", graph.id},
                    {"slots", graph.slots},
                    {"owners", graph.owners},
                    {"bytes", graph.bytes},
                    {"arena_bytes", graph.arena_bytes},
                    {"graphs", graph.graphs}});
  };
  return json_of({{"devices", json_array(report.devices, of_device)},
                  {"pools", json_array(report.pools, json_of_pool)},
                  {"groups", json_array(report.groups, json_of_group)},
                  {"graphs", json_array(report.graphs, of_graph)},
                  {"execs", report.execs}});
}

}  // namespace escrow::inline v0_2
