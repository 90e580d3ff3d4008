// The reference model's questions.
#include "reference.hpp"

#include <algorithm>

namespace escrow::test {

bool has(entries const& list, int thing) {
  return std::ranges::any_of(list, [&](entry const& each) { return each.thing == thing; });
}

entries take_node(entries& list, int node) {
  auto const rest = std::stable_partition(list.begin(), list.end(),
                                          [&](entry const& each) { return each.node != node; });
  entries taken(rest, list.end());
  list.erase(rest, list.end());
  return taken;
}

void append(entries& to, entries const& from) {
  to.insert(to.end(), from.begin(), from.end());
}

int reference::add(kind is) {
  thing_state added;
  added.is = is;
  things_.push_back(added);
  return static_cast<int>(things_.size()) - 1;
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
  return std::ranges::any_of(things_.at(static_cast<std::size_t>(thing)).marks,
                             [&](int mark) { return !is_done(mark); });
}

void reference::keep_for_launches(entries const& held, int behind) {
  entries unused = held;
  entries const used = [&] {
    entries list = held;
    std::erase_if(list, [](entry const& each) { return !each.launched; });
    return list;
  }();
  std::erase_if(unused, [](entry const& each) { return each.launched; });
  in_flight_.push_back({used, behind});
  in_flight_.push_back({unused, 0});
}

void reference::grow(std::uint64_t serial, entries const& more) {
  auto const look = [&](contents& in) {
    bool const grows = std::ranges::find(in.grows_with, serial) != in.grows_with.end();
    if (grows) append(in.lingering, more);
  };
  for (contents& each : graphs) look(each);
  for (contents& each : execs) look(each);
  for (contents& each : hoisted) look(each);
  for (auto& [of, left] : orphans) look(left);
}

void reference::doubt_captures() {
  for (auto& [id, captured] : captures_) {
    append(captured.lingering, captured.held);
    captured.held.clear();
  }
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

bool reference::anything_held() const {
  bool found = !in_flight_.empty();
  each_contents([&](contents const& in, char const*, std::size_t) {
    found = found || !in.held.empty() || !in.lingering.empty();
  });
  return found;
}

std::string reference::why_alive(int thing, contents const* but_not) const {
  thing_state const& state = things_.at(static_cast<std::size_t>(thing));
  if (state.handles > 0) return "the caller has it";
  if (is_pending(thing)) return "work on a stream uses it";
  std::string why;
  each_contents([&](contents const& in, char const* what, std::size_t number) {
    if (&in != but_not && has(in.held, thing)) why = what + std::to_string(number);
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

}  // namespace escrow::test
