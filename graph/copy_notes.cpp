// A copy holds what its original holds; the registry has to know.
#include "copy_notes.hpp"

#include <algorithm>

#include "escrow/detail/graph_query.hpp"
#include "escrow/detail/graph_registry.hpp"

namespace escrow {

graph_survey survey_for_copy(char const* call, graph const& original) {
  graph_survey survey = survey_of(call, original, {});
  // The copy has these sets, too, and must not get what the original gets later.
  for (auto const& each : survey.known) static_cast<void>(graph_registry::global().seal(each.id));
  return survey;
}

void copy_notes::note(cudaGraph_t original, cudaGraph_t copy, std::uint64_t id) {
  around_.blank_copies.erase(copy);  // one that had the handle before may have been blank
  if (std::uint64_t const original_id = originals_.known_id(original); original_id != 0) {
    if (id == 0) id = graph_id_of(copy).value_or(0);
    if (id != 0) graph_registry::global().add_copy(original_id, id, copy);
  } else if (!originals_.is_unknown(original)) {
    blank_.insert(copy);
  }
  // The children of a copy come in the order in which the original has them.
  inner_graphs const from = inner_graphs_of(original);
  inner_graphs const to = inner_graphs_of(copy);
  std::size_t const pairs = std::min(from.children.size(), to.children.size());
  for (std::size_t i = 0; i < pairs; ++i) note(from.children[i], to.children[i], 0);
}

}  // namespace escrow
