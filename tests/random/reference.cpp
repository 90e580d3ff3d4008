// The reference model's questions.
#include "reference.hpp"

#include <algorithm>
#include <utility>

namespace escrow::test {

bool has(entries const& list, int thing) {
  return std::ranges::find(list, thing, &entry::thing) != list.end();
}

entries take(entries& list, std::function<bool(entry const&)> const& is_taken) {
  auto const rest = std::stable_partition(list.begin(), list.end(), std::not_fn(is_taken));
  entries taken(rest, list.end());
  list.erase(rest, list.end());
  return taken;
}

entries take_node(entries& list, int node) {
  return take(list, [node](entry const& each) { return each.node == node; });
}

void append(entries& to, entries const& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void contents::append(contents const& more) {
  test::append(held, more.held);
  test::append(lingering, more.lingering);
  test::append(needed, more.needed);
  grows_with.insert(grows_with.end(), more.grows_with.begin(), more.grows_with.end());
}

int reference::add(kind is) {
  things_.emplace_back().is = is;
  return size() - 1;
}

int reference::add_mark(int device) {
  marks_.push_back({false, device});
  return static_cast<int>(marks_.size()) - 1;
}

void reference::drop_work(int device) {
  for (mark_state& each : marks_) each.done = each.done || each.device == device;
}

void reference::pend(int thing, int mark) {
  if (!is_done(mark)) state_of(thing).marks.push_back(mark);
}

bool reference::is_pending(int thing) const {
  return !std::ranges::all_of(things_.at(static_cast<std::size_t>(thing)).marks,
                              [&](int mark) { return is_done(mark); });
}

void reference::keep_for_launches(entries const& held, int behind) {
  entries unused = held;
  entries const used = take(unused, [](entry const& each) { return each.launched; });
  in_flight_.push_back({used, behind});
  in_flight_.push_back({unused, 0});
}

template <class Look>
void reference::each_contents(Look look) const {
  auto const all = [&](auto const& list, char const* what) {
    for (std::size_t i = 0; i < list.size(); ++i) look(list[i], what, i);
  };
  all(graphs, "graph g");
  all(execs, "exec e");
  all(hoisted, "hoisted h");
  for (auto const& [id, captured] : captures_) look(captured, "capture ", id);
  for (auto const& [serial, left] : orphans) look(left, "a body of graph ", serial);
}

void reference::grow(std::uint64_t serial, entries const& more) {
  entries rest = more;
  entries const of_bodies = take(rest, [](entry const& each) { return each.on_body; });
  auto const look = [&](contents& in) {
    bool const grows = std::ranges::count(in.grows_with, serial) != 0;
    bool const bodies_grow = std::ranges::count(in.grows_with_bodies_of, serial) != 0;
    if (grows) append(in.lingering, more);
    if (!grows && bodies_grow) append(in.lingering, of_bodies);
  };
  std::ranges::for_each(graphs, look);
  std::ranges::for_each(execs, look);
  std::ranges::for_each(hoisted, look);
  for (auto& [of, left] : orphans) look(left);
}

void reference::doubt_captures() {
  for (auto& [id, captured] : captures_)
    append(captured.lingering, std::exchange(captured.held, {}));
}

bool reference::anything_held() const {
  bool found = !in_flight_.empty();
  each_contents([&](contents const& in, char const*, std::size_t) {
    found = found || !in.held.empty() || !in.lingering.empty();
  });
  return found;
}

std::string reference::why_alive(int thing) const {
  thing_state const& state = things_.at(static_cast<std::size_t>(thing));
  if (state.handles > 0) return "the caller has it";
  if (is_pending(thing)) return "work on a stream uses it";
  std::string why;
  each_contents([&](contents const& in, char const* what, std::size_t number) {
    if (has(in.held, thing)) why = what + std::to_string(number);
  });
  for (flight const& each : in_flight_)
    if (!is_done(each.behind) && has(each.held, thing)) why = "a launch in flight uses it";
  return why;
}

bool reference::is_held_by_graphs(int thing) const {
  bool found = std::ranges::any_of(in_flight_, [&](flight const& e) { return has(e.held, thing); });
  each_contents([&](contents const& in, char const*, std::size_t) {
    found = found || has(in.held, thing) || has(in.lingering, thing);
  });
  return found;
}

bool reference::may_live(int thing) const {
  thing_state const& state = things_.at(static_cast<std::size_t>(thing));
  return state.handles > 0 || state.is_pooled || is_pending(thing) || is_held_by_graphs(thing);
}

std::vector<int> reference::left(bool are_due) const {
  std::vector<int> found;
  for (int thing = 0; thing < size(); ++thing)
    if (!things_[static_cast<std::size_t>(thing)].gone && !(are_due && may_live(thing)))
      found.push_back(thing);
  return found;
}

}  // namespace escrow::test
