// Counts, added up and printed.
#include "counts.hpp"

#include <iomanip>
#include <sstream>

namespace escrow::test {

namespace {

constexpr std::array<std::string_view, situation_count> names{
    "a fault was injected",
    "a device was lost",
    "a claim waited in its stream",
    "a claim added an edge",
    "a slot was claimed again in its capture",
    "a slot of a graph was claimed again",
    "an eager slot went to a capture",
    "a claim on a forked stream",
    "a claim beside a kernel",
    "a release beside a kernel",
    "a lease outlived its capture",
    "an owner was retired into a fork",
    "all shares were gone while work went on",
    "a capture was abandoned with things",
    "a capture was ended by another thread",
    "a graph was captured into again",
    "a graph was gone before its exec",
    "an exec was gone in flight",
    "an exec was updated in flight",
    "an exec was updated from a reshaped graph",
    "an exec's node was set after an update",
    "an exec's node was set in flight",
    "hoisted after changes of nodes",
    "hoisted by handle after changes of nodes",
    "a handle was exposed between changes",
    "a lease was shared by two nodes",
    "a node was changed with an exec there",
    "a plain exec was launched",
    "a hoisted graph was launched plainly",
    "a pool was gone with slots out",
    "a pool was closed with slots in graphs",
    "retired to a stopped deleter",
    "things on a parent graph",
    "an operation waited for a lock of another",
    "a pool was closed inside a claim",
    "a claim inside a claim",
    "a release inside a claim",
    "a claim inside a release",
    "a pool was gone inside a release",
    "a capture was begun inside a claim",
    "a poll inside a retire",
    "a poll inside a poll",
    "a poll inside an update",
    "a retire inside a drain",
    "the last share was gone inside a use",
    "a launch inside one of an exec of the same graph",
    "an exec gone inside a launch of one of the same graph",
    "a destroy callback inside a claim",
    "a destroy callback inside an instantiation",
    "a kernel inside a launch",
    "a fault was ordered for an operation among others",
    "memory was claimed again in its capture",
    "memory of two sizes in a capture",
    "memory was freed",
    "a scratch pool was gone with blocks out",
    "a conditional node stood in a body",
    "an owner was kept in a body",
    "a lease was shared by a node of a body",
    "things on a child graph of a body",
    "a body was captured into",
    "a body outlived its graph",
    "an exec with conditions was launched",
    "an exec with conditions was gone in flight",
    "a lease of memory was filled by a node",
    "a copy kept two owners",
    "an exec's node of another kind was set",
    "a kept event was gone",
    "an exec with events was launched",
    "an exec with memory was launched",
    "memory was freed in another graph",
    "a node stayed beside memory nodes",
    "an allocation failed",
    "released on the legacy stream beside a capture",
    "code was dropped while it ran",
    "code was kept by a node",
    "code was unloaded",
    "a capture was left by an exception"};
static_assert(!names.back().empty());

}  // namespace

std::string_view name_of(situation met) {
  return names.at(static_cast<std::size_t>(met));
}

void run_counts::add(run_counts const& other) {
  programs += other.programs;
  steps += other.steps;
  kernels += other.kernels;
  things += other.things;
  for (std::size_t i = 0; i < op_count; ++i) {
    for (std::size_t k = 0; k < operations[i].size(); ++k)
      operations[i][k] += other.operations[i][k];
  }
  for (std::size_t i = 0; i < situation_count; ++i) situations[i] += other.situations[i];
  groups += other.groups;
  if (other.groups == 0) return;
  for (std::size_t i = 0; i < op_count; ++i)
    for (std::size_t k = 0; k < op_count; ++k) inside[i][k] += other.inside[i][k];
}

std::string to_text(run_counts const& counted) {
  std::ostringstream text;
  std::uint64_t pairs = 0;
  std::size_t kinds = 0;
  for (auto const& row : counted.inside) {
    for (std::uint32_t const each : row) {
      pairs += each;
      kinds += each != 0 ? 1 : 0;
    }
  }
  text << counted.programs << " programs, " << counted.steps << " single steps, " << counted.kernels
       << " kernels run, " << counted.things << " things\n"
       << pairs << " operations inside calls of others, of " << kinds << " pairs of kinds, in "
       << counted.groups << " groups\n"
       << std::left << std::setw(20) << "operation" << std::right;
  for (char const* const each : {"done", "refused", "exhausted", "failed", "skipped"})
    text << std::setw(10) << each;
  text << '\n';
  for (std::size_t i = 0; i < op_count; ++i) {
    text << std::left << std::setw(20) << spec_of(static_cast<op>(i)).name << std::right;
    for (outcome const each :
         {outcome::done, outcome::refused, outcome::exhausted, outcome::failed, outcome::skipped})
      text << std::setw(10) << counted.operations[i][static_cast<std::size_t>(each)];
    text << '\n';
  }
  for (std::size_t i = 0; i < situation_count; ++i)
    text << std::setw(10) << counted.situations[i] << "  " << name_of(static_cast<situation>(i))
         << '\n';
  return text.str();
}

}  // namespace escrow::test
