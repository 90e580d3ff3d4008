// SPDX-License-Identifier: Apache-2.0
// Which operations may run at the same time; a program's world, and one operation after the other.
#pragma once

#include "world_checks.hpp"

namespace escrow::test {

/// Which operations may run at the same time, by CUDA and the contracts, and what came of it.
struct world_overlap : world_checks {
  /// A bit for each place of a kind, by its letter.
  static std::uint64_t bit_of(char letter, nth place) {
    constexpr std::string_view letters = "sgelnphoxj";  // those that may overlap ask for no other
    unsigned at = 0;
    for (char const each : letters) {
      if (each == letter) return std::uint64_t{1} << (at + place);
      at += places_of(each);
    }
    return 0;
  }

  /// Besides the places: the world, which all share; the machine, which one at a time steps; and
  /// launches, which a hoisted has to come after.
  static constexpr std::uint64_t world_itself = std::uint64_t{1} << 61U;
  static constexpr std::uint64_t machine = std::uint64_t{1} << 62U;
  static constexpr std::uint64_t launches = std::uint64_t{1} << 63U;
  static constexpr std::uint64_t everything = ~std::uint64_t{0};

  template <class... Ops>
  static bool is_one_of(op kind, Ops... others) {
    return ((kind == others) || ...);
  }

  static bool is_claim(op kind) { return is_one_of(kind, op::claim, op::claim_captured); }

  static bool is_release(op kind) {
    return is_one_of(kind, op::release, op::release_on, op::drop_lease);
  }
  static bool is_launch(op kind) { return is_one_of(kind, op::launch, op::launch_bound); }

  /// Any thread may use pools, but not create or destroy them; several may share an owner.
  static bool is_for_all(op kind, char letter) {
    if (letter == 'p')
      return is_claim(kind) || is_one_of(kind, op::try_claim, op::close_pool, op::make_claimer,
                                         op::read_stats, op::stage);
    if (letter == 'o') return !is_one_of(kind, op::own, op::disown);
    return letter == 'x' && kind != op::share;
  }

  /// The legacy stream is not used while captures begin or end, or take a stream in.
  static bool may_change_captures(op kind) {
    return is_one_of(kind, op::begin, op::begin_into, op::fork, op::wait_early, op::end,
                     op::invalidate, op::destroy_stream);
  }

  /// Other threads may enqueue on a stream, but not begin or end its capture, nor destroy it.
  static bool changes_stream(op kind, char asked) {
    return asked == 'r' || is_one_of(kind, op::destroy_stream, op::wait_early) ||
           (asked == 'i' && is_one_of(kind, op::begin, op::begin_into, op::fork));
  }

  /// What an operation uses, a bit for each place: alone, or together with others that only use it.
  struct reach {
    std::uint64_t alone = 0;
    std::uint64_t shared = 0;
  };

  /// A capture, with all its streams and the graph that it goes into, is one thread's at a time.
  void reach_stream(reach& all, nth s, bool is_changed) const {
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

  reach reach_of(operation const& next) const {
    reach all;
    op_spec const& spec = spec_of(next.kind);
    if (!spec.may_overlap() || next.failing_allocation != 0) return {everything, everything};
    all.shared |= world_itself;
    if (may_change_captures(next.kind)) all.alone |= bit_of('s', legacy_stream);
    for (std::size_t i = 0; i < spec.arguments.size(); ++i) {
      char const letter = letter_of(spec.arguments[i]);
      std::size_t const place = next.arguments[i];
      if (letter == 's') {
        reach_stream(all, place, changes_stream(next.kind, spec.arguments[i]));
        continue;
      }
      (is_for_all(next.kind, letter) ? all.shared : all.alone) |= bit_of(letter, place);
      if (letter == 'n') {
        // And the graph that it is of; a node may be added after the one in the place before.
        if (is_there(nodes_[place])) all.alone |= bit_of('g', nodes_[place].graph);
        if (next.kind == op::add_node)
          all.alone |= bit_of('n', (place + nodes_.size() - 1) % nodes_.size());
      }
      if (letter == 'j' && claimers_[place].is_there()) reach_claimer(all, claimers_[place]);
      if (letter == 'h' && turns_[place]) reach_stream(all, turns_[place]->stream, false);
      if (letter == 'l' && leases_[place].held) {
        reach_stream(all, leases_[place].stream, false);
        for (auto const& other : leases_[place].others) reach_stream(all, other.stream, false);
      }
    }
    if (is_launch(next.kind) || is_one_of(next.kind, op::flush, op::unbind, op::destroy_exec))
      reach_exec(all, next);
    if (is_one_of(next.kind, op::launch_in_turn, op::launch_hoisted)) all.shared |= launches;
    if (is_one_of(next.kind, op::drop_hoisted, op::let_go)) all.alone |= launches;
    if (is_one_of(next.kind, op::let_go, op::step)) all.alone |= machine;
    // It records on all streams, and none begins a capture meanwhile.
    for (nth s = 0; run_->lasts && s < streams_.size(); ++s)
      if (is_one_of(next.kind, op::close_pool, op::destroy_pool)) all.shared |= bit_of('s', s);
    return all;
  }

  /// Its stream, and its pool as claims use it. Memory is claimed alone.
  void reach_claimer(reach& all, claimer_place const& place) const {
    if (place.memory) all = {everything, everything};
    reach_stream(all, place.stream, false);
    if (place.home == homes_[place.pool] && place.own) all.shared |= bit_of('p', place.pool);
  }

  /// Graphs' memory is there, or not, by the order of launches; destroying an exec with conditions
  /// waits for the machine. A graph that may have one exec only can have another after that.
  void reach_exec(reach& all, operation const& next) const {
    exec_place const& place = execs_[next.arguments[0]];
    if (place.bound) reach_stream(all, place.stream, false);
    if (is_launch(next.kind)) {
      (place.has_memory ? all.alone : all.shared) |= launches;
      for (std::size_t i = 0; place.has_memory && i < streams_.size(); ++i)
        all.alone |= bit_of('s', i);
      return;
    }
    if (place.is_conditional) all.alone |= machine;
    for (std::size_t i = 0; i < graphs_.size(); ++i) {
      graph_place const& source = graphs_[i];
      if (source.is_there() && source.is_single && source.serial == place.made_of)
        all.alone |= bit_of('g', i);
    }
  }

  bool may_join(std::span<operation const> group, operation const& next) const {
    if (is_lost()) return false;
    reach const its = reach_of(next);
    return std::ranges::none_of(group, [&](operation const& each) {
      reach const other = reach_of(each);
      return each.thread == next.thread || (each.failing_call != 0 && next.failing_call != 0) ||
             (its.alone & (other.alone | other.shared)) != 0 || (its.shared & other.alone) != 0;
    });
  }

  /// The operation is under way, and so are those of the other threads that have begun.
  void begin_running(operation const& next) {
    running& own = running_.at(next.thread);
    mine_ = &own;
    own = {.what = &next};
    if (is_launch(next.kind) || next.kind == op::destroy_exec)
      own.made_of = execs_[next.arguments[0]].made_of;
    for (running& other : running_) {
      if (&other == &own || other.what == nullptr) continue;
      other.has_met = own.has_met = true;
    }
  }

  /// It is over. What is inside a call was there all the time since, or came after it began.
  void end_running(bool is_done) {
    if (is_done) each_outer([this](running const& outer) { note_inside(outer, *mine_); });
    mine_->what = nullptr;
    mine_ = nullptr;
  }

  /// Calls `look` with the others that are inside a call of the library.
  void each_outer(auto look) const {
    for (running const& outer : running_)
      if (&outer != mine_ && outer.what != nullptr && outer.is_inside) look(outer);
  }

  void note_group() {
    ++counts_.groups;
    meet(waited_for_a_lock, baton::lock_waits());
  }

  /// What a step of the machine did inside the calls of others.
  void note_step(std::size_t callbacks_before, std::size_t kernels_before) {
    bool const had_callback = sim::alive().pending_callbacks < callbacks_before;
    bool const had_kernel = all_.runs() > kernels_before;
    each_outer([&](running const& outer) {
      op const around = outer.what->kind;
      meet(callback_inside_a_claim, had_callback && is_claim(around));
      meet(callback_inside_an_instantiate, had_callback && around == op::instantiate);
      meet(kernel_inside_a_launch, had_kernel && around == op::launch);
    });
  }

  void note_inside(running const& outer, running const& inner) {
    op const around = outer.what->kind;
    op const within = inner.what->kind;
    bool const is_same_pool = outer.what->arguments[1] == inner.what->arguments[0];
    meet(pool_closed_inside_a_claim, is_claim(around) && within == op::close_pool && is_same_pool);
    meet(claim_inside_a_claim, is_claim(around) && is_claim(within));
    meet(release_inside_a_claim, is_claim(around) && is_release(within));
    meet(release_inside_a_claim_of_a_claimer, around == op::claim_on && is_release(within));
    meet(claimer_gone_inside_a_claim, is_claim(around) && within == op::end_claimer);
    meet(leaving_inside_the_end_of_a_graph,
         around == op::destroy_graph && within == op::leave_to_graph);
    meet(claim_inside_a_release, is_release(around) && is_claim(within));
    meet(release_inside_a_trim, around == op::trim && is_release(within));
    meet(trim_inside_a_release, is_release(around) && within == op::trim);
    meet(pool_gone_inside_a_release, is_release(around) && within == op::destroy_pool);
    meet(capture_begun_inside_a_claim, is_claim(around) && within == op::begin);
    meet(poll_inside_a_retire, around == op::retire && within == op::poll);
    meet(poll_inside_a_poll, around == op::poll && within == op::poll);
    meet(poll_inside_an_update, around == op::update && within == op::poll);
    meet(retire_inside_a_drain, around == op::drain && within == op::retire);
    meet(last_share_gone_inside_a_use,
         around == op::use_shared && within == op::unshare && !outer.is_shared);
    meet(left_inside_a_launch, is_launch(around) && within == op::leave);
    meet(left_inside_an_enter, around == op::enter && within == op::leave);
    bool const is_of_a_sibling = around == op::launch && outer.made_of == inner.made_of;
    meet(launch_inside_a_launch_of_a_sibling, is_of_a_sibling && within == op::launch);
    meet(sibling_launched_inside_a_launch_of_a_launcher,
         around == op::launch_bound && outer.made_of == inner.made_of && within == op::launch);
    meet(exec_gone_inside_a_launch_of_a_sibling, is_of_a_sibling && within == op::destroy_exec);
  }
};

/// What: runs one program on the stepped simulator. After each operation, and inside the kernels
/// and destructors, it is checked against the reference model.
/// Thread safety: one thread at a time has the baton; operations may be under way on others.
class world : private world_overlap {
 public:
  world(program const& run, planted bug) {
    run_ = &run;
    planted_ = bug;
    is_careless_ = run.seed % 8 == 0;
    begin_machine(run.seed);
    static_cast<void>(arena());
    at_begin_ = sim::alive();
    invalidated_ = sim::captures_invalidated();
    deleter_options chosen;
    chosen.own_worker = false;
    chosen.poll_interval_min = std::chrono::microseconds(1);
    worker_ = std::make_unique<deleter>(chosen);
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      streams_[i].device = i == 3 ? 1 : 0;
      create_stream(i);
    }
    for (std::size_t i = 0; i < pools_.size(); ++i) create_pool(i);
  }
  world(world&&) = delete;
  ~world() {
    if (worker_ == nullptr) return;
    // Destroying one that still owes something would start a thread for it. It is leaked.
    static auto& left =
        *new std::vector<std::pair<std::unique_ptr<deleter>, std::shared_ptr<graph_registry>>>;
    left.emplace_back(std::move(worker_), process_.registry());
  }

  /// Makes an operation of a program that is not exact name the places that it means.
  void resolve(operation& next) const {
    std::string_view const asked = spec_of(next.kind).arguments;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      unsigned const places = places_of(letter_of(asked[i]));
      for (unsigned tried = 0; tried < places; ++tried) {
        unsigned const place = (next.arguments[i] + tried) % places;
        // Two of a kind are not the same: a graph is not its own child.
        bool const is_second = i != 0 && asked[i - 1] == asked[i] && (i == 1 || asked[i] == 'g');
        if (is_second && place == next.arguments[i - 1] && tried + 1 < places) continue;
        if (!has_what_is_asked(asked[i], place, next)) continue;
        next.arguments[i] = static_cast<std::uint8_t>(place);
        break;
      }
    }
  }

  /// Does one operation on the calling thread. Several may be under way on their threads, if
  /// may_join() said so before they began, and the baton is passed on between them.
  void perform(operation const& next) {
    outcome result = skipped;
    thread_ = next.thread;
    begin_running(next);
    op const kind = has_all_it_needs(next) ? next.kind : op::count;
    switch (kind) {
#define ESCROW_CASE(name, ...)                        \
  case op::name:                                      \
    result = call(&world::do_##name, next.arguments); \
    break;
      ESCROW_RANDOM_OPERATIONS(ESCROW_CASE)
      case op::count:
        break;
    }
    if (result != skipped) sweep_captures();
    check_captures();
    end_running(result == done);
    ++counts_.operations[static_cast<std::size_t>(next.kind)][static_cast<std::size_t>(result)];
  }

  using world_overlap::finish;
  using world_overlap::may_join;
  using world_overlap::note_group;
  std::string const& failure() const {
    return all_.failure();
  }
  run_counts const& counts() const {
    return counts_;
  }

 private:
  bool has_all_it_needs(operation const& next) const {
    op_spec const& spec = spec_of(next.kind);
    if (spec.must_be_built() && !is_built(next.arguments[1])) return false;
    for (std::size_t i = 0; !spec.looks_itself() && i < spec.arguments.size(); ++i) {
      char const asked = spec.arguments[i];
      bool const is_wish = asked == 'q' || asked == 'u' || asked == 'd';
      char const needed = is_wish ? letter_of(asked) : asked;
      if (asked != 'N' && !has_what_is_asked(needed, next.arguments[i], next)) return false;
    }
    return true;
  }

  template <class Base, class... Place>
  outcome call(outcome (Base::*operation)(Place...), std::array<std::uint8_t, 4> const& at) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return (this->*operation)(at[i]...);
    }
    (std::index_sequence_for<Place...>{});
  }

  outcome do_step(nth count) {
    for (std::size_t i = 0; i <= count; ++i) {
      std::size_t const callbacks = mine_->has_met ? sim::alive().pending_callbacks : 0;
      std::size_t const kernels = all_.runs();
      {
        inside_call const inside;
        if (!sim::step()) break;
      }
      ++counts_.steps;
      if (mine_->has_met) note_step(callbacks, kernels);
    }
    return done;
  }
};

}  // namespace escrow::test
