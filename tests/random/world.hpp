// A program's world on its machine, and one operation of it after the other.
#pragma once

#include <escrow/internal/graph_query.hpp>

#include "world_overlap.hpp"

namespace escrow::test {

/// The library makes one more stream when a lease of the legacy stream ends during a capture: once
/// in a process.
inline void release_during_a_capture() {
  deleter worker({.own_worker = false});
  {
    resource_pool<int> pool({.device = 0, .deleter = &worker}, [] { return 0; });
    std::optional<lease<int>> held(pool.claim(cudaStreamLegacy));
    owned_stream blocking;
    must(cudaStreamCreate(blocking.out()));
    must(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    held.reset();
    owned_graph captured;
    must(cudaStreamEndCapture(blocking, captured.out()));
  }
  sim::run_until_idle();
  static_cast<void>(worker.poll());
  for (std::size_t left = sim::alive().events; left != 0; --left)
    static_cast<void>(event_cache::take(0));
}

/// The library spreads streams by their ids, which are never reused: a program has the same ones,
/// as far as that goes, whatever ran before.
inline void align_stream_ids() {
  constexpr unsigned long long spread = 64;
  for (unsigned long long id = 1; id % spread != 0;) {
    owned_stream const made = make_stream();
    must(cudaStreamGetId(made, &id));
  }
}

/// What a process makes at its first use.
inline void use_once() {
  for (int device : {0, 1}) static_cast<void>(event_cache::take(device));
  static_cast<void>(work_kernel());
  static_cast<void>(work_kernel_that_keeps());
  static_cast<void>(work_kernel_of_memory());
  static_cast<void>(world_owners::code());
  owned_graph made;
  must(cudaGraphCreate(made.out(), 0));
  static_cast<void>(graph_id_of(made));
}

/// The machine is not reset between programs, because the library keeps a stream and events of it.
/// None of that differs from program to program: there is such a stream for each device and thread,
/// and no event.
inline void begin_machine(std::uint64_t seed) {
  [[maybe_unused]] static bool const is_first = [] {
    // Ids of as many digits in all programs, and in 32 bits.
    sim::reset({.stepped = true, .first_graph_id = 100'000'000});
    release_during_a_capture();
    use_once();
    return true;
  }();
  sim::reseed(seed);
  align_stream_ids();
}

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
        if (i == 1 && asked[0] == asked[1] && place == next.arguments[0] && tried + 1 < places)
          continue;
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
