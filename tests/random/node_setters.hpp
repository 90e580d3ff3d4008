// One way to change a node of a graph, and a node of an exec.
#pragma once

#include <escrow/graph.hpp>
#include <utility>

namespace escrow::test {

/// What: a node of a graph that is to be changed.
/// Thread safety: as node.
struct graph_node_setter {
  node const& changed;

  void launch(auto&&... with) { changed.set_launch(std::forward<decltype(with)>(with)...); }
  void memset(auto&&... with) { changed.set_memset(std::forward<decltype(with)>(with)...); }
  void memcpy(auto&&... with) { changed.set_memcpy(std::forward<decltype(with)>(with)...); }
  void call(auto&& with) { changed.set_call(std::forward<decltype(with)>(with)); }
  void event(shared_event with) { changed.set_event(std::move(with)); }
};

/// What: the same node in an exec.
/// Thread safety: as graph_exec.
struct exec_node_setter {
  graph_exec& exec;
  node const& changed;

  void launch(auto&&... with) { exec.set_launch(changed, std::forward<decltype(with)>(with)...); }
  void memset(auto&&... with) { exec.set_memset(changed, std::forward<decltype(with)>(with)...); }
  void memcpy(auto&&... with) { exec.set_memcpy(changed, std::forward<decltype(with)>(with)...); }
  void call(auto&& with) { exec.set_call(changed, std::forward<decltype(with)>(with)); }
  void event(shared_event with) { exec.set_event(changed, std::move(with)); }
};

}  // namespace escrow::test
