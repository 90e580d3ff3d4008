// SPDX-License-Identifier: Apache-2.0
// Whether a call audits, and what it refuses.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "audited_call.hpp"
#include "escrow/core/error.hpp"
#include "escrow/graph/audit.hpp"
#include "escrow/internal/address_lookup.hpp"
#include "escrow/internal/environment.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/hoist_note.hpp"
#include "escrow/internal/parked_group.hpp"
#include "escrow/internal/reference_set.hpp"

namespace escrow::inline v0_2 {

namespace {

// What a call refuses.
enum class refusal : std::uint8_t { nothing, what_is_not_held, all };

refusal refusal_of(audit_use use, audited_call what) noexcept {
  if (use == audit_use::no) return refusal::nothing;
  if (use == audit_use::yes) return refusal::all;
  using environment::audits;
  audits const asked = environment::asked_audits();
  if (asked != audits::by_default) {
    return asked == audits::off ? refusal::nothing : refusal::all;
  }
  return environment::is_simulated() && what == audited_call::capture ? refusal::what_is_not_held
                                                                      : refusal::nothing;
}

}  // namespace

void refuse_audited(char const* call, graph_ref const& graph, audit_use use, audited_call what,
                    std::span<cudaGraph_t const> bodies) {
  refusal const refused = refusal_of(use, what);
  if (refused == refusal::nothing) return;
  if (use == audit_use::by_default && is_any_parked()) return;
  std::vector<audit_finding> found = audit_for(call, graph, bodies, refused == refusal::all);
  std::erase_if(found, [](audit_finding const& each) {
    return each.what == address_problem::only_looks_like;
  });
  if (found.empty()) return;
  std::string const& text = found.front().text;
  std::size_t const advice = text.rfind("; ");
  std::string problem = text.substr(0, advice);
  if (found.size() > 1) problem += " (and " + std::to_string(found.size() - 1) + " more)";
  throw usage_error(call, problem, text.substr(advice + 2));
}

bool is_audited(audited_call what, audit_use use) noexcept {
  return refusal_of(use, what) != refusal::nothing;
}

void refuse_own_owner(char const* call, audit_use use, char const* what, void const* holder,
                      deferred_releases const& held) {
  refusal const refused = refusal_of(use, audited_call::capture);
  if (refused == refusal::nothing) return;
  bool const or_points = refused == refusal::all;  // of a pointer it is not known whether it owns
  auto const owns = [=](auto const& each) { return each.set->owns(holder, or_points); };
  if (std::ranges::none_of(held, owns)) return;
  throw usage_error(call,
                    std::string("the ") + what +
                        " is a part of an owner that its graph keeps, or is behind a pointer in "
                        "it, so neither is ever destroyed",
                    "let the graph keep what its kernels use, e.g. a std::shared_ptr to the "
                    "weights, not the object that has the " +
                        std::string(what) + "; or switch this audit off: see audit_use");
}

namespace {

// After the destructors of all statics. On the simulated runtime, with ESCROW_AUDIT=1: an owner
// that has the exec which keeps it, in whatever way, shows as both are left.
[[gnu::destructor]] void tell_of_execs_left() noexcept {
  using namespace environment;
  if (!is_simulated() || asked_audits() != audits::on) return;
  graph_registry const& registry = graph_registry::global();
  if (registry.execs.load(std::memory_order_relaxed) == 0) return;  // relaxed: a number
  try {
    std::size_t owners = 0;
    for (auto const& each : registry.holdings()) owners += each.graphs == 0 ? each.held.owners : 0;
    if (owners == 0) return;
    static_cast<void>(std::fprintf(
        stderr,
        "escrow: as the process ends, owners (%zu) are kept by execs that were not destroyed: does "
        "one of them have its exec? Then neither is ever destroyed; let the graph keep what its "
        "kernels use, e.g. a std::shared_ptr to the weights, not the object that has the exec\n",
        owners));
  } catch (std::bad_alloc const&) {
  }
}

}  // namespace

void refuse_not_captured(char const* call, cudaGraph_t captured, audit_use use,
                         std::uint64_t before) {
  refusal const refused = refusal_of(use, audited_call::capture);
  if (environment::eager_work() <= before || refused == refusal::nothing) return;
  std::size_t nodes = 0;
  check(cudaGraphGetNodes(captured, nullptr, &nodes), "cudaGraphGetNodes");
  bool const is_empty = nodes == 0 && graph_registry::global().sets_on(captured) == 0;
  if (!is_empty && refused != refusal::all) return;
  throw usage_error(call,
                    std::string(is_empty ? "nothing" : "not all") +
                        " was captured: the function enqueued work on another stream, where it "
                        "runs now",
                    "enqueue it on the stream that is captured, which the function is given; if it "
                    "is right so, pass capture_options with audit_use::no");
}

void refuse_released(char const* call, graph_ref const& graph, hoist_note const* by,
                     std::span<cudaGraph_t const> bodies) {
  if (by == nullptr) return;
  std::vector<audit_finding> found = audit_for(call, graph, bodies, false);
  std::erase_if(found, [by](audit_finding const& each) {  // what the graph never held
    auto const number = reinterpret_cast<std::uintptr_t>(each.address);
    known_address const its = address_lookup::known()->find(number, false);
    return its.what == known_address::kind::slot && !by->slots.contains(its.slot);
  });
  if (found.empty()) return;
  std::string const& text = found.front().text;
  throw usage_error(
      call,
      "the `hoisted`" + detail::line_text(" of ", by->made) +
          " has released what the graph uses: " + text.substr(0, text.find(" is of ")),
      "create and launch all execs of a graph before that, or capture again");
}

}  // namespace escrow::inline v0_2
