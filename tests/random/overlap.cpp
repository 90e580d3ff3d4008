// Which operations may run at the same time, as CUDA and the contracts have it, and what came of
// it.
#include <algorithm>
#include <escrow/sim.hpp>

#include "baton.hpp"
#include "world.hpp"

namespace escrow::test {

namespace {

/// A bit for each place of a kind, by its letter.
std::uint64_t bit_of(char letter, std::size_t place) {
  constexpr std::string_view letters = "sgelnphox";  // no other is asked for by those that may
  unsigned at = 0;
  for (char const each : letters) {
    if (each == letter) return std::uint64_t{1} << (at + place);
    at += places_of(each);
  }
  return 0;
}

/// Beside the places: the world, which all share; the machine, which one at a time steps; and
/// launches, which a hoisted has to come after.
constexpr std::uint64_t world_itself = std::uint64_t{1} << 61U;
constexpr std::uint64_t machine = std::uint64_t{1} << 62U;
constexpr std::uint64_t launches = std::uint64_t{1} << 63U;
constexpr std::size_t legacy_stream = 4;
constexpr std::uint64_t everything = ~std::uint64_t{0};

/// Those that end or judge what all others use stay alone; so does what is not named here.
bool may_overlap(op kind) {
  switch (kind) {
    case op::step:
    case op::work:
    case op::poll:
    case op::drain:
    case op::claim:
    case op::claim_captured:
    case op::touch:
    case op::release:
    case op::release_on:
    case op::drop_lease:
    case op::close_pool:
    case op::destroy_pool:
    case op::make_pool:
    case op::retire:
    case op::retire_now:
    case op::retire_after:
    case op::retire_graph:
    case op::own:
    case op::disown:
    case op::keep:
    case op::launch_lease:
    case op::share:
    case op::use_shared:
    case op::unshare:
    case op::begin:
    case op::begin_into:
    case op::fork:
    case op::join:
    case op::wait_early:
    case op::end:
    case op::invalidate:
    case op::destroy_stream:
    case op::make_graph:
    case op::expose:
    case op::clone:
    case op::child:
    case op::destroy_graph:
    case op::instantiate:
    case op::launch:
    case op::update:
    case op::destroy_exec:
    case op::hoist:
    case op::let_go:
    case op::drop_hoisted:
    case op::add_node:
    case op::add_node_of_lease:
    case op::set_node:
    case op::set_node_of_lease:
    case op::destroy_node:
    case op::exec_set:
    case op::exec_set_of_lease:
    case op::add_fill:
    case op::add_fill_of_lease:
    case op::add_copy:
    case op::add_join:
    case op::add_edge:
    case op::try_claim:
      return true;
    default:
      return false;
  }
}

bool is_claim(op kind) {
  return kind == op::claim || kind == op::claim_captured;
}

/// Pools are anybody's but for their beginning and their end; several threads may have shares of an
/// owner, and lose them.
bool is_for_all(op kind, char letter) {
  if (letter == 'p') return is_claim(kind) || kind == op::try_claim || kind == op::close_pool;
  if (letter == 'o') return kind != op::own && kind != op::disown;
  if (letter == 'x') return kind != op::share;
  return false;
}

/// Those begin or end captures, or take a stream into one: the legacy stream is not used beside.
bool may_change_captures(op kind) {
  return kind == op::begin || kind == op::begin_into || kind == op::fork ||
         kind == op::wait_early || kind == op::end || kind == op::invalidate ||
         kind == op::destroy_stream;
}

/// Other threads may enqueue on a stream meanwhile, but not begin or end its capture, nor destroy
/// it.
bool changes_stream(op kind, char asked) {
  return asked == 'r' || kind == op::destroy_stream || kind == op::wait_early ||
         (asked == 'i' && (kind == op::begin || kind == op::begin_into || kind == op::fork));
}

}  // namespace

/// A capture, with all its streams and the graph that it goes into, is one thread's at a time.
void world::reach_stream(reach& all, std::size_t s, bool is_changed) const {
  capture_state const at = capture_at(s);
  bool const is_shared = at.is_none() && !is_changed && !is_blocked(s);
  (is_shared ? all.shared : all.alone) |= bit_of('s', s);
  if (at.is_none()) return;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    capture_state const other = capture_at(i);
    if (other.is == at.is && other.id == at.id) all.alone |= bit_of('s', i);
  }
  for (open_capture const& each : captures_)
    if (each.into && (each.origin == s || each.id == at.id)) all.alone |= bit_of('g', *each.into);
}

world::reach world::reach_of(operation const& next) const {
  reach all;
  if (!may_overlap(next.kind) || next.failing_allocation != 0) return {everything, everything};
  all.shared |= world_itself;
  if (may_change_captures(next.kind)) all.alone |= bit_of('s', legacy_stream);
  std::string_view const asked = spec_of(next.kind).arguments;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    char const letter = letter_of(asked[i]);
    std::size_t const place = next.arguments[i];
    if (letter == 's') {
      reach_stream(all, place, changes_stream(next.kind, asked[i]));
      continue;
    }
    (is_for_all(next.kind, letter) ? all.shared : all.alone) |= bit_of(letter, place);
    if (letter == 'n') {
      // And the graph that it is of; a node may be added after the one in the place before.
      if (is_there(nodes_[place])) all.alone |= bit_of('g', nodes_[place].graph);
      if (next.kind == op::add_node)
        all.alone |= bit_of('n', (place + nodes_.size() - 1) % nodes_.size());
    }
    if (letter == 'l' && leases_[place].held) {
      reach_stream(all, leases_[place].stream, false);
      for (std::size_t const other : leases_[place].others) reach_stream(all, other, false);
    }
  }
  reach_exec(all, next);
  if (next.kind == op::drop_hoisted) all.alone |= launches;
  if (next.kind == op::let_go) all.alone |= launches | machine;
  if (next.kind == op::step) all.alone |= machine;
  return all;
}

/// Graphs' memory is there, or not, by the order of launches; the end of an exec with conditions
/// waits for the machine. A graph that may have one exec only can have another after that.
void world::reach_exec(reach& all, operation const& next) const {
  exec_place const& place = execs_[next.arguments[0] % execs_.size()];
  if (next.kind == op::launch) (place.has_memory ? all.alone : all.shared) |= launches;
  if (next.kind == op::launch && place.has_memory)
    for (std::size_t i = 0; i < streams_.size(); ++i) all.alone |= bit_of('s', i);
  if (next.kind != op::destroy_exec) return;
  if (place.is_conditional) all.alone |= machine;
  for (std::size_t i = 0; i < graphs_.size(); ++i) {
    graph_place const& source = graphs_[i];
    if (source.is_there() && source.is_single && source.serial == place.made_of)
      all.alone |= bit_of('g', i);
  }
}

bool world::may_join(std::span<operation const> group, operation const& next) const {
  if (lost_[0] || lost_[1]) return false;
  reach const its = reach_of(next);
  return std::ranges::none_of(group, [&](operation const& each) {
    reach const other = reach_of(each);
    return each.thread == next.thread || (each.failing_call != 0 && next.failing_call != 0) ||
           (its.alone & (other.alone | other.shared)) != 0 || (its.shared & other.alone) != 0;
  });
}

thread_local world::running* world::mine_ = nullptr;

/// The operation is under way, and so are those of the other threads that have begun.
void world::begin_running(operation const& next) {
  running& own = running_.at(next.thread);
  mine_ = &own;
  own = {.what = &next};
  if (next.kind == op::launch || next.kind == op::destroy_exec)
    own.made_of = execs_[next.arguments[0]].made_of;
  for (running& other : running_) {
    if (&other == &own || other.what == nullptr) continue;
    other.has_met = own.has_met = true;
  }
}

/// It is over. Whoever is inside a call was there all the time since, or came after it began.
void world::end_running(bool is_done) {
  for (running const& outer : running_) {
    if (&outer == mine_ || outer.what == nullptr || !outer.is_inside || !is_done) continue;
    note_inside(outer, *mine_);
  }
  mine_->what = nullptr;
  mine_ = nullptr;
}

void world::note_group() {
  ++counts_.groups;
  for (std::size_t i = 0; i < baton::lock_waits(); ++i) counts_.meet(situation::waited_for_a_lock);
}

/// What a step of the machine did inside the calls of others.
void world::note_step(std::size_t callbacks_before, std::size_t kernels_before) {
  bool const had_callback = sim::alive().pending_callbacks < callbacks_before;
  bool const had_kernel = all_.runs() > kernels_before;
  for (running const& outer : running_) {
    if (&outer == mine_ || outer.what == nullptr || !outer.is_inside) continue;
    op const around = outer.what->kind;
    if (had_callback && is_claim(around)) counts_.meet(situation::callback_inside_a_claim);
    if (had_callback && around == op::instantiate)
      counts_.meet(situation::callback_inside_an_instantiate);
    if (had_kernel && around == op::launch) counts_.meet(situation::kernel_inside_a_launch);
  }
}

void world::note_inside(running const& outer, running const& inner) {
  op const around = outer.what->kind;
  op const within = inner.what->kind;
  auto const is_release = [](op kind) {
    return kind == op::release || kind == op::release_on || kind == op::drop_lease;
  };
  auto const meet = [&](bool is_so, situation met) {
    if (is_so) counts_.meet(met);
  };
  ++counts_.inside[static_cast<std::size_t>(around)][static_cast<std::size_t>(within)];
  bool const is_same_pool = outer.what->arguments[1] == inner.what->arguments[0];
  meet(is_claim(around) && within == op::close_pool && is_same_pool,
       situation::pool_closed_inside_a_claim);
  meet(is_claim(around) && is_claim(within), situation::claim_inside_a_claim);
  meet(is_claim(around) && is_release(within), situation::release_inside_a_claim);
  meet(is_release(around) && is_claim(within), situation::claim_inside_a_release);
  meet(is_release(around) && within == op::destroy_pool, situation::pool_gone_inside_a_release);
  meet(is_claim(around) && within == op::begin, situation::capture_begun_inside_a_claim);
  meet(around == op::retire && within == op::poll, situation::poll_inside_a_retire);
  meet(around == op::poll && within == op::poll, situation::poll_inside_a_poll);
  meet(around == op::update && within == op::poll, situation::poll_inside_an_update);
  meet(around == op::drain && within == op::retire, situation::retire_inside_a_drain);
  meet(around == op::use_shared && within == op::unshare && !outer.is_shared,
       situation::last_share_gone_inside_a_use);
  bool const are_siblings = outer.made_of == inner.made_of;
  meet(around == op::launch && within == op::launch && are_siblings,
       situation::launch_inside_a_launch_of_a_sibling);
  meet(around == op::launch && within == op::destroy_exec && are_siblings,
       situation::exec_gone_inside_a_launch_of_a_sibling);
}

}  // namespace escrow::test
