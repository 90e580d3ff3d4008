// Families of graphs: who makes or ends a member right now.
#include "families.hpp"

#include "graphs.hpp"

namespace escrow::sim::model {
namespace {

void enter(api_call& c, std::shared_ptr<family> const& entered) {
  // relaxed: whoever comes after the other call by the program's own doing sees that it is over;
  // whoever does not is at the same time, be it over or not.
  std::uint64_t const user = entered->user.load(std::memory_order_relaxed);
  if (user == c.me.number) return;
  if (user != 0) {
    give_up(std::string(c.name) + " on " + describe_this_thread() + " beside " + entered->call +
            " on thread " + std::to_string(user) +
            ": both make or end what is of one graph, and CUDA's links between these have no lock");
  }
  entered->user.store(c.me.number, std::memory_order_relaxed);
  entered->call = c.name;
  c.families.push_back(entered);
}

}  // namespace

void enter_own_family(api_call& c, CUgraph_st const& original) {
  enter(c, original.own);
}

void enter_families(api_call& c, CUgraph_st const& member) {
  enter(c, member.own);
  for (auto const& each : member.origins) enter(c, each);
  for (auto const& node : member.nodes) {
    for (auto const& inner : inner_graphs(*node)) enter_families(c, *inner);
  }
}

}  // namespace escrow::sim::model
