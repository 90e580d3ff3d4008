// Who runs, and who is next.
#include "baton.hpp"

#include <cstdlib>
#include <deque>

#include "team.hpp"
#include "turn.hpp"

namespace escrow::test {

namespace {

/// So many waits in a row, of all together, without one that ends: a deadlock.
constexpr std::size_t waits_max = 100'000;

struct group;

struct member {
  baton::runner const* runs = nullptr;
  group* of = nullptr;
  std::size_t index = 0;
  unsigned points = 0;   // met so far
  bool is_open = false;  // they count
  bool is_done = false;
  turn mine;
  std::function<void()> body;
};

/// Whoever has the baton may look at all of it.
struct group {
  std::deque<member> members;
  std::size_t waits = 0;
};

constinit thread_local member* me = nullptr;
std::size_t lock_waits_so_far = 0;

/// The next after `from` that is not done; `from` itself if there is none.
member& next_after(member& from) {
  auto& all = from.of->members;
  for (std::size_t i = 1; i < all.size(); ++i) {
    member& other = all[(from.index + i) % all.size()];
    if (!other.is_done) return other;
  }
  return from;
}

void pass_on() noexcept {
  member& from = *me;
  member& to = next_after(from);
  if (&to == &from) return;
  to.mine.give();
  from.mine.take();
}

void run_member(member& self) {
  self.mine.take();
  me = &self;
  self.runs->work();
  me = nullptr;
  self.is_done = true;
  if (member& to = next_after(self); &to != &self) to.mine.give();
}

}  // namespace

void baton::run(std::vector<runner> const& runners) {
  lock_waits_so_far = 0;
  group all;
  for (runner const& each : runners) {
    member& added = all.members.emplace_back();
    added.runs = &each;
    added.of = &all;
    added.index = all.members.size() - 1;
    added.body = [&added] { run_member(added); };
  }
  all.members.front().mine.give();
  member* on_this_thread = nullptr;
  for (member& each : all.members) {
    if (each.runs->thread == 0) {
      on_this_thread = &each;
    } else {
      team::start(each.runs->thread, each.body);
    }
  }
  if (on_this_thread != nullptr) on_this_thread->body();
  for (member& each : all.members)
    if (&each != on_this_thread) team::await(each.runs->thread);
}

bool baton::is_in_group() noexcept {
  return me != nullptr;
}

void baton::point() noexcept {
  if (me == nullptr || !me->is_open) return;
  constexpr unsigned bits = 64;
  unsigned const now = me->points++;
  if (((me->runs->passes >> (now % bits)) & 1U) != 0) pass_on();
}

void baton::wait() noexcept {
  if (me == nullptr) return;
  if (++me->of->waits > waits_max) std::abort();
  pass_on();
}

void baton::go_on() noexcept {
  if (me != nullptr) me->of->waits = 0;
}

std::size_t baton::lock_waits() noexcept {
  return lock_waits_so_far;
}

void baton::count_lock_wait() noexcept {
  ++lock_waits_so_far;
}

open_points::open_points() noexcept {
  if (me == nullptr) return;
  me->is_open = true;
  baton::point();
}

open_points::~open_points() {
  if (me == nullptr) return;
  baton::point();
  me->is_open = false;
}

}  // namespace escrow::test
