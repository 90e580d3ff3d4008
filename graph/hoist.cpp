// SPDX-License-Identifier: Apache-2.0
// Transfers references to a caller that launches by itself.
#include "escrow/graph/hoist.hpp"

#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "audited_call.hpp"
#include "escrow/core/capture.hpp"
#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/own_stream.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/reference_set.hpp"
#include "graph_core.hpp"
#include "graph_survey.hpp"
#include "holding.hpp"

namespace escrow::inline v0_2 {

namespace {

void report(deferred_releases const& held, std::exception const& error) noexcept {
  for (auto const& each : held) each.set->core().report(error);
}

void report_misuse(deferred_releases const& held, source_location made, std::string_view what,
                   char const* remedy) noexcept {
  try {
    std::string const text = "the `hoisted`" + detail::line_text(" of ", made) + std::string(what);
    report(held, usage_error("hoisted::~hoisted", text, remedy));
  } catch (std::bad_alloc const&) {
    // No memory for the text; deleter_stats::leaked counts it.
  }
}

}  // namespace

struct ESCROW_LOCAL hoisted::state {
  state(deferred_releases taken, bool has_all, source_location where)
      : made(where), is_bare(has_all) {
    all.held = std::move(taken);
  }

  void note_turns() noexcept {  // it is launched in turns from now on
    graph_registry::global().note_ordered(all.held);
    for (auto& each : all.held) graph_registry::global().note_hoisted(each, false);
  }
  // `holder`: the `hoisted` that has it.
  void enter(char const* call, void const* holder, stream_ref stream,
             std::chrono::nanoseconds wait_max);
  void leave(char const* call);  // ends the turn also if it throws
  void leave_or_report(char const* call) noexcept;
  void refuse_own_owner(char const* call, void const* holder) const {
    escrow::refuse_own_owner(call, audit_use::by_default, "hoisted", holder, all.held);
  }
  // The end of the last turn is known from now on, or this throws. `stream`: null: none is given.
  void require_known_end(char const* call, stream_ref const* stream);

  source_location made;
  hoist_ref note = nullptr;  // of its graph
  holding all;               // its end: of `at_end`, made in advance
  bool is_bare;
  // See release_at_end(). A default stream is that of its device, or of its thread.
  struct end_on {
    stream_ref stream;
    int device;
    std::uint64_t thread;  // its thread_number()
  };
  std::optional<end_on> at_end = std::nullopt;
  holding turns;  // the same sets, until the end of the last turn; from the first turn on

  struct turn {
    stream_ref stream;
    std::uint64_t id;  // the stream's
  };
  std::optional<turn> now = std::nullopt;  // from enter() to leave()
};

void hoisted::state::enter(char const* call, void const* holder, stream_ref stream,
                           std::chrono::nanoseconds wait_max) {
  refuse_own_owner(call, holder);
  if (now) {
    throw usage_error(call, "it is inside its own launch()", "launch after that call has returned");
  }
  refuse_capturing(call, stream);
  if (turns.end == nullptr) {
    turns = holding(all.sets());
    note_turns();
  }
  launch_lock const lock(call, turns, wait_max);
  // Also for its own last launch: there may be several execs.
  std::uint64_t id = turns.wait_for_last(call, stream, nullptr);
  if (id == 0) id = stream_id(stream);
  bool const is_first_there = turns.end->known() == end_state::none || turns.end->stream == id;
  if (turns.is_only_read() && !is_first_there) {
    // Nothing orders this turn behind the last one: what is held waits for each of them.
    require_known_end(call, nullptr);
    turns = holding(all.sets());
  }
  turns.enter();
  now = {stream, id};
}

void hoisted::state::leave(char const* call) {
  auto const [stream, id] = *std::exchange(now, std::nullopt);
  turns.leave(call, stream, id);
}

void hoisted::state::leave_or_report(char const* call) noexcept {
  try {
    if (now) leave(call);
  } catch (std::exception const& error) {
    report(all.held, error);
  }
}

void hoisted::state::require_known_end(char const* call, stream_ref const* stream) {
  std::shared_ptr<launch_end> const& last = turns.end;
  if (last == nullptr || last->known() != end_state::unknown) return;
  if (stream == nullptr || stream_id(*stream) != last->stream) {
    refuse_unknown(call, *last,
                   "the end of the last launch() is not known: launch on that stream again before, "
                   "or call release() once nothing runs");
  }
  launch_lock const lock(turns);  // others may wait for that end
  cudaError_t const status = record_end(*last, *stream);
  if (last->known() == end_state::unknown) check(status, "cudaEventRecord");
}

hoisted::hoisted(std::shared_ptr<state> taken) noexcept : state_(std::move(taken)) {}

hoisted::hoisted(hoisted&& other) noexcept = default;

hoisted& hoisted::operator=(hoisted&& other) noexcept {
  hoisted taken(std::move(other));
  std::swap(state_, taken.state_);
  return *this;
}

hoisted::~hoisted() {
  if (state_ == nullptr) return;
  constexpr char const* call = "hoisted::~hoisted";
  state& mine = *state_;
  if (mine.now) {
    report_misuse(mine.all.held, mine.made, " ended inside its own launch()",
                  "end it after that call");
    mine.leave_or_report(call);
  }
  bool const is_elsewhere = mine.at_end && mine.at_end->stream.get() == cudaStreamPerThread &&
                            mine.at_end->thread != thread_number();
  if (is_elsewhere) {
    report_misuse(mine.all.held, mine.made,
                  " ends on another thread than the one whose cudaStreamPerThread "
                  "release_at_end() was given",
                  "end it on that thread, or give a stream of your own");
  }
  for (int tries_left = is_elsewhere ? 0 : 3; mine.at_end && tries_left != 0; --tries_left) {
    try {
      auto const [stream, device, thread] = *mine.at_end;  // the state ends with the release
      std::optional<device_scope> its;
      if (is_ambiguous(stream.get())) its.emplace(device);
      refuse_capturing(call, stream);
      record_and_release(call, stream);
      return;
    } catch (std::exception const& failed) {
      if (tries_left == 1) report(mine.all.held, failed);
    }
  }
  if (!mine.at_end) {
    report_misuse(mine.all.held, mine.made, " ended with references that were not released",
                  "call release_after(), release_at_end() or release()");
  }
  leak(std::move(mine.all.held));
  mine.turns.held.clear();  // the same references: leaked, and counted, once
}

hoisted hoist(graph_ref source, std::vector<cudaGraph_t> const& bodies, source_location where) {
  return detail::called_at("hoist", where, [&] {
    relaxed_capture_scope const relaxed;
    graph_survey const survey = survey_of("hoist", source.get(), source.core(), bodies);
    refuse_released("hoist", source, survey.released.get(), bodies);
    hoist_scope off("hoist", survey);
    if (off.sets().empty() && !survey.known.empty()) {
      throw usage_error("hoist", "the graph was hoisted before, and holds nothing new since",
                        "keep the first `hoisted` for all that is created from the graph");
    }
    auto taken =
        std::make_shared<hoisted::state>(hold_all(off.sets()), !survey.lacks_bodies, where);
    taken->note = std::make_shared<hoist_note>(where);
    taken->note->slots = graph_registry::global().memory_of_sets(off.sets()).slots;
    off.keep_off(source.core(), taken->note);
    for (auto& each : taken->all.held) graph_registry::global().note_hoisted(each, true);
    return hoisted(std::move(taken));
  });
}

void hoisted::run_launch(stream_ref stream, cudaError_t (*run)(void const*), void const* argument,
                         std::chrono::nanoseconds wait_max, source_location where) {
  constexpr char const* call = "hoisted::launch";
  detail::called_at(call, where, [&] { require(call).enter(call, this, stream, wait_max); });
  std::shared_ptr<state> const mine = state_;  // this may be moved or destroyed meanwhile
  cudaError_t status = cudaSuccess;
  try {
    status = run(argument);
  } catch (...) {
    mine->leave_or_report(call);
    throw;
  }
  if (status != cudaSuccess) mine->leave_or_report(call);
  check(status, "hoisted::launch: the function", where);
  detail::called_at(call, where, [&] {
    if (mine->now) mine->leave(call);
  });
}

void hoisted::enter(stream_ref stream, std::chrono::nanoseconds wait_max) {
  constexpr char const* call = "hoisted::enter";
  require(call).enter(call, this, stream, wait_max);
}

void hoisted::leave() {
  constexpr char const* call = "hoisted::leave";
  state& mine = require(call);
  if (!mine.now) throw usage_error(call, "enter() was not called", "call enter() before");
  refuse_capturing(call, mine.now->stream);
  mine.leave(call);
}

void hoisted::launches_in_turn() noexcept {
  if (state_ != nullptr) state_->note_turns();
}

void hoisted::release_after(stream_ref stream, source_location where) {
  constexpr char const* call = "hoisted::release_after";
  detail::called_at(call, where, [&] {
    static_cast<void>(require_outside(call));
    refuse_capturing(call, stream);
    record_and_release(call, stream);
  });
}

void hoisted::record_and_release(char const* call, stream_ref stream) {
  state& mine = *state_;
  mine.require_known_end(call, &stream);
  if (!mine.all.held.empty()) {
    auto const end =
        mine.all.end != nullptr ? mine.all.end : std::make_shared<launch_end>(device_of(stream));
    cudaError_t const status = record_end(*end, stream);
    if (end->known() == end_state::unknown) check(status, "cudaEventRecord");
    mine.all.end = end;
  }
  end();  // the references wait for that end, and that of the last turn
}

// No exec may be created of the graph from now on.
void hoisted::end() noexcept {
  state_->note->is_released.store(true, std::memory_order_relaxed);
  state_.reset();
}

void hoisted::release_after(event_ref ready, source_location where) {
  constexpr char const* call = "hoisted::release_after";
  detail::called_at(call, where, [&] {
    if (ready.get() == nullptr) {
      throw usage_error(call, "`ready` is null", "pass a recorded event");
    }
    require_outside(call).require_known_end(call, nullptr);
    relaxed_capture_scope const relaxed;  // otherwise the query could invalidate a capture
    cudaError_t const status = cudaEventQuery(ready.get());
    bool const is_pending = !succeeded(status) && status == cudaErrorNotReady;
    if (answer_of(status) == ready_answer::done) return release();  // also if its device is lost
    if (!is_pending) check(status, "cudaEventQuery");
    // An event of ours behind it, which claims can query as long as they need.
    own_stream const behind;
    ready.wait(behind.get());
    record_and_release(call, behind.get());
  });
}

void hoisted::release_at_end(stream_ref stream, source_location where) {
  constexpr char const* call = "hoisted::release_at_end";
  detail::called_at(call, where, [&] {
    state& mine = require(call);
    mine.refuse_own_owner(call, this);
    int const device = current_device();
    mine.all.end = std::make_shared<launch_end>(device);
    mine.at_end = {stream, device, thread_number()};
  });
}

void hoisted::release(source_location where) {
  constexpr char const* call = "hoisted::release";
  state& mine = detail::called_at(call, where, [&]() -> state& { return require_outside(call); });
  if (mine.turns.end != nullptr) {
    launch_lock const lock(mine.turns);
    // Nothing runs, says the caller.
    if (mine.turns.end->known() == end_state::unknown) mine.turns.end->become(end_state::none);
  }
  mine.all.end = nullptr;  // the references are dropped at once
  end();
}

bool hoisted::is_bare() const noexcept {
  return state_ == nullptr || state_->is_bare;
}

resource_usage hoisted::held() const {
  return state_ == nullptr ? resource_usage{} : resource_usage_of(state_->all.held);
}

hoisted::state& hoisted::require_outside(char const* call) const {
  state& mine = require(call);
  if (!mine.now) return mine;
  throw usage_error(call, "it is inside its own launch()", "call it after that call has returned");
}

hoisted::state& hoisted::require(char const* call) const {
  if (state_ != nullptr) return *state_;
  throw usage_error(call, "it was released or moved from", "launch before that, and release once");
}

}  // namespace escrow::inline v0_2
