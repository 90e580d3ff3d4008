// SPDX-License-Identifier: Apache-2.0
// Every call of every operation of core and deleters fails once: events, scopes, questions, retire,
// share, poll, drain, stop.
#include <escrow/core.hpp>
#include <escrow/internal/device.hpp>
#include <escrow/internal/driver.hpp>
#include <escrow/internal/graph_query.hpp>
#include <escrow/internal/ready_event.hpp>
#include <escrow/internal/retry_cleanup.hpp>

#include "fault_world.hpp"

namespace escrow::test {
namespace {

using rows = operations_in<deleter_stage>;
using step = rows::step;

step const busy = [](auto& in) { in.keep_busy(in.one); };
step const owner = [](auto& in) { in.have_owner(); };
step const shared = [](auto& in) { in.share(); };
step const used_on_one = [](auto& in) { record_stream(in.shared, in.one); };
step const retire_on_one = [](auto& in) { in.worker->retire(in.one, std::move(*in.mine)); };
/// The steps with device 1 current.
step elsewhere(rows::steps steps) {
  return [=](auto& in) {
    device_scope const there(1);
    for (step const& each : steps) each(in);
  };
}
step stream_made(owned_stream deleter_stage::*stream) {
  return [=](auto& in) { in.*stream = make_stream(); };
}
auto const one = &deleter_stage::one;
auto const other = &deleter_stage::other;

step const with_event = [](auto& in) { in.recorded.emplace(); };

/// Keeps a result as text.
step answer_of(auto query) {
  return [=](auto& in) { in.answer = std::to_string(query(in)); };
}

/// Records an event of `device` on a stream of device 0: it is recorded, replaced by a fresh one,
/// or left as it was.
void record_ready_of(int device, deleter_stage& in) {
  cudaEvent_t const handle = in.recorded->get();
  std::size_t const events = sim::alive().events;
  int found = device;
  record_result const result = record_ready(*in.recorded, found, in.one);
  bool const is_fresh = in.recorded->get() != handle;
  EXPECT_TRUE(!is_fresh || result.outcome == record_outcome::recorded);
  EXPECT_EQ(found, is_fresh ? 0 : device);
  std::size_t const kept = is_fresh && device != 0 ? 1 : 0;
  EXPECT_LE(sim::alive().events, events + kept)
      << "an event that was refused on its device is kept";
  if (result.outcome != record_outcome::failed) return;
  bool const is_of_each = result.status == cudaErrorUnknown;  // if all records fail
  EXPECT_TRUE(is_of_each || is_sticky(result.status) ||
              result.status == cudaErrorInvalidResourceHandle)
      << "it is not the first record's error";
  throw cuda_error(result.status, "cudaEventRecord");
}

void add_events(rows& add) {
  add("event, made", runs("event::event"), {}, with_event);
  add("event, ended", runs("event::event"), {with_event}, [](auto& in) { in.recorded.reset(); });
  add("event, recorded", runs("event_ref::record"), {with_event},
      [](auto& in) { in.recorded->ref().record(in.one); });
  add("event, waited for", runs("event_ref::wait"), {with_event},
      [](auto& in) { in.recorded->ref().wait(in.one); });
  add("event, asked", runs("event_ref::is_done"), {with_event},
      answer_of([](auto& in) { return in.recorded->ref().is_done(); }))
      .served_otherwise = {{"cudaEventQuery", "cudaErrorNotReady is an answer"}};
  add("event, synced", runs("event_ref::sync"), {with_event},
      [](auto& in) { in.recorded->ref().sync(); });
  auto const takes = runs("event_cache::take");
  add("event cache, empty", takes, {}, [](auto& in) { in.taken.emplace(event_cache::take(0)); });
  add("event cache, empty, of another device", takes, {},
      [](auto& in) { in.taken.emplace(event_cache::take(1)); });
  auto const puts = runs("event_cache::put");
  add("event cache, given back", puts, {with_event},
      [](auto& in) { event_cache::put(0, std::move(*in.recorded)); });
  add("event cache, given back for no device", puts, {with_event},
      [](auto& in) { event_cache::put(-1, std::move(*in.recorded)); });
  auto const records = runs("record_ready");
  add("ready event, recorded", records, {with_event}, [](auto& in) { record_ready_of(0, in); });
  // The first record is refused.
  add("ready event, of another device", records,
      {[](auto& in) { in.recorded.emplace(event_cache::take(1)); }},
      [](auto& in) { record_ready_of(1, in); })
      .refused_first = cudaErrorInvalidResourceHandle;
}

void add_scopes(rows& add) {
  add("current device", runs("current_device"), {}, [](auto& in) { in.device = current_device(); });
  add("device scope", runs("device_scope::device_scope device_scope::~device_scope"), {},
      [](auto& in) {
        device_scope const there(1);
        in.answer = "1";
      });
  add("relaxed scope",
      runs("relaxed_capture_scope::relaxed_capture_scope "
           "relaxed_capture_scope::~relaxed_capture_scope"),
      {}, [](auto& in) {
        relaxed_capture_scope const relaxed;
        in.answer = "1";
      });
  add("cleanup retried", runs("retry_cleanup"), {with_event}, answer_of([](auto& in) {
        cudaEvent_t const handle = in.recorded->detach();
        return retry_cleanup([&] { return cudaEventDestroy(handle); });
      }));
  add("cleanup retried in relaxed mode", runs("retry_cleanup_relaxed"), {with_event},
      answer_of([](auto& in) {
        cudaEvent_t const asked = in.recorded->get();
        return retry_cleanup_relaxed([&] { return cudaEventQuery(asked); });
      }));
}

void add_queries(rows& add) {
  auto const is_active = [](auto& in) { return capture_of(in.one).is_active(); };
  add("capture info, of none", runs("capture_of"), {}, answer_of(is_active));
  add("capture info, of a capture", runs("capture_of"), {capturing}, answer_of(is_active));
  add("capture info, to use the stream", runs("usable_capture_of"), {capturing},
      answer_of([](auto& in) { return usable_capture_of("test", in.one).is_active(); }));
  add("stream id", runs("stream_id"), {},
      answer_of([](auto& in) { return stream_id(in.one) != 0; }));
  add("stream's device", runs("device_of"), {}, [](auto& in) { in.device = device_of(in.one); });
  add("capturing stream's device", runs("device_of_capturing"), {capturing},
      [](auto& in) { in.device = device_of_capturing(in.one); });
  add("graph id", runs("graph_id_of"), {},
      answer_of([](auto& in) { return graph_id_of(in.plain).has_value(); }));
}

void add_eager_retirements(rows& add) {
  auto const retire = runs("deleter::retire");
  add("retire, after a stream", retire, {busy, owner}, retire_on_one);
  add("retire, again after a stream", retire,
      {[](auto& in) { in.worker->retire(in.one, probe(make_fate())); }, busy, owner},
      retire_on_one);
  add("retire, a large owner", retire, {busy, [](auto& in) { in.large.emplace(in.fate()); }},
      [](auto& in) { in.worker->retire(in.one, std::move(*in.large)); });
  auto& on_device_1 =
      add("retire, on the stream of another device", retire,
          {elsewhere({stream_made(other), [](auto& in) { in.keep_busy(in.other); }, owner})},
          [](auto& in) { in.worker->retire(in.other, std::move(*in.mine)); });
  on_device_1.stated = {{"*", "if nothing can be recorded, the owner is leaked and counted"}};
  on_device_1.stated_shows = "leaked 1";
  on_device_1.refused_first = cudaErrorInvalidResourceHandle;  // the record with device 0's event
  add("retire, without a stream", retire, {owner},
      [](auto& in) { in.worker->retire(std::move(*in.mine)); });
  add("retire, after an event", runs("deleter::retire_after"),
      {busy, owner, [](auto& in) { must(cudaEventRecord(in.ready, in.one)); }},
      [](auto& in) { in.worker->retire_after(in.ready.get(), std::move(*in.mine)); });
  add("retire, after an event that it keeps", runs("deleter::retire_after"),
      {busy, owner,
       [](auto& in) {
         in.kept_event.emplace();
         in.kept_event->ref().record(in.one);
       }},
      [](auto& in) { in.worker->retire_after(std::move(*in.kept_event), std::move(*in.mine)); });
  add("retain, with the process's own deleter", runs("retain"),
      {owner, [](auto& in) { in.uses_global = in.is_reclaimed_apart = true; }},
      [](auto& in) { retain(in.one, std::move(*in.mine)); });
}

void retire_around_work(deleter_stage& in) {
  in.worker->retire_around(
      "test", in.one, std::make_unique<std::optional<probe>>(),
      [&in](auto& placed) { placed->emplace(std::move(*in.mine)); },
      [&in] { escrow::check(launch_tiny(in.one), "cudaLaunchKernel"); });
}

void add_captured_retirements(rows& add) {
  auto const retire = runs("deleter::retire");
  std::string const text =
      "if CUDA refuses the user object, the owner is either still the caller's or destroyed by the "
      "worker";
  statements const refused{
      {"cudaUserObjectCreate", text}, {"cudaGraphRetainUserObject", text}, {"operator new", text}};
  add("retire, in a capture", retire, {owner, capturing}, retire_on_one).stated = refused;
  add("retire, in a capture of another device", retire,
      {elsewhere({stream_made(one), owner, capturing})}, retire_on_one)
      .stated = refused;
  add("retire, with a graph", retire, {owner}, [](auto& in) {
    in.worker->retire(in.plain.get(), std::move(*in.mine));
  }).stated = refused;
  auto const around = runs("deleter::retire_around");
  add("retire, around work", around, {busy, owner}, retire_around_work);
  add("retire, around work in a capture", around, {owner, capturing}, retire_around_work).stated = {
      {"*", "in a capture the graph has the owner before the work is enqueued"}};
}

void add_shared(rows& add) {
  statements const taken{
      {"operator new", "the object may have been made, and is destroyed by the worker"}};
  add("shared object, made", runs("make_stream_shared_by"), {owner}, [](auto& in) {
    in.shared = make_stream_shared_by<probe>(*in.worker, std::move(*in.mine));
  }).stated = taken;
  add("shared object, made by the process's own deleter", runs("make_stream_shared"), {owner},
      [](auto& in) { in.shared = make_stream_shared<probe>(std::move(*in.mine)); })
      .stated = taken;
  auto const recorded = runs("record_stream");
  auto const add_use = [&](char const* name, rows::steps before) {
    auto& use = add(name, recorded, std::move(before), used_on_one);
    use.stated = {{"*", "the work may use the object, which is leaked and counted"}};
    use.stated_shows = "leaked 1";
  };
  add_use("shared object, used", {shared, busy});
  add_use("shared object, used again", {shared, used_on_one, busy});
  step const used_on_four = [](auto& in) {
    for (int i = 0; i < 4; ++i) record_stream(in.shared, make_stream());
  };
  add_use("shared object, used on many streams", {shared, used_on_four, busy});
  add("shared object, used in a capture", recorded,
      {shared, capturing, [](auto& in) { in.polls_when_seen = true; }}, used_on_one);
}

step retired_on(owned_stream deleter_stage::*stream) {
  return [=](auto& in) { in.worker->retire(in.*stream, probe(in.fate())); };
}
step const retired = [](auto& in) { in.worker->retire(probe(in.fate())); };
/// Was used on the streams, and is dropped.
step shared_until(std::vector<owned_stream deleter_stage::*> streams) {
  return [=](auto& in) {
    in.share();
    for (auto const each : streams) {
      record_stream(in.shared, in.*each);
      if (!in.is_busy) sync(in.*each);
    }
    in.shared.reset();
  };
}
step const on_device_1 = [](auto& in) { in.reclaimed_on = 1; };
step const all_done = [](auto&) { must(cudaDeviceSynchronize()); };

void add_reclaims(rows& add) {
  add("poll, an owner in use", runs("deleter::poll"), {busy, retired_on(one)}, poll);
  add("poll, a shared object in use", runs("deleter::poll"), {busy, shared_until({one, other})},
      poll);
  step const on_device_0 = [](auto& in) { in.reclaimed_on = 0; };
  step const retired_after_event = [](auto& in) {
    must(cudaEventRecord(in.ready, in.one));
    in.worker->retire_after(in.ready.get(), probe(in.fate()));
  };
  step const retired_with_graph = [](auto& in) {
    in.worker->retire(in.plain.get(), probe(in.fate()));
    in.plain.reset();
  };
  // What waits to be reclaimed, and is not in use.
  std::vector<std::pair<std::string, rows::steps>> const things{
      {"nothing", {}},
      {"an owner", {retired}},
      {"an owner of another device", {elsewhere({retired, on_device_1})}},
      {"an owner after its stream", {retired_on(one), all_done}},
      {"two owners after their streams",
       {retired_on(one), retired_on(other), on_device_0, all_done}},
      {"an owner after an event", {retired_after_event, all_done}},
      {"an owner of a graph", {retired_with_graph}},
      {"a shared object", {shared_until({one, other})}},
      {"a shared object of another device", {elsewhere({shared_until({one}), on_device_1})}},
  };
  statements const partly{
      {"*", "a drain that throws may have reclaimed something before, and may be repeated"}};
  statements const closed{{"*", "it refuses new work at once, and then drains"}};
  for (auto const& each : things) {
    std::string const& what = each.first;
    rows::steps const& before = each.second;
    auto const add_drain = [&](char const* name, char const* functions, statements const& stated,
                               bool (*drain)(deleter&)) {
      add(name + what, functions, before, [=](auto& in) {
        in.has_drained = drain(*in.worker);
      }).stated = stated;
    };
    // A poll that throws has reclaimed nothing: the thread could not be made ready for it.
    add("poll, " + what, runs("deleter::poll"), before, poll).served_otherwise = at_next_poll;
    add_drain("drain, ", runs("deleter::drain"), partly, [](auto& it) { return it.drain(), true; });
    add_drain("drain for a while, ", runs("deleter::drain_for"), partly,
              [](auto& it) { return it.drain_for(generous); });
    add_drain("stop, ", runs("deleter::stop"), closed, [](auto& it) { return it.stop(), true; });
    add_drain("stop for a while, ", runs("deleter::stop_for"), closed,
              [](auto& it) { return it.stop_for(generous); });
  }
}

void add_deleters(rows& add) {
  step const make = [](auto& in) { in.other_worker = in.polled(); };
  step const end = [](auto& in) { in.other_worker.reset(); };
  add("deleter, made", runs("deleter::deleter"), {}, make);
  add("deleter, described", runs("deleter::describe to_json"), {capturing, retired_on(one)},
      [](auto& in) { in.answer = in.worker->describe().empty() ? "empty" : "text"; });
  add("deleter, its on_error replaced", {}, {make}, [](auto& in) {
    in.other_worker->set_on_error([log = in.errors](auto const& error) { log->add(error.what()); });
  });
  add("deleter with a thread, made", runs("deleter::deleter"), {},
      [](auto& in) { in.other_worker = std::make_unique<deleter>(); });
  step const retire_and_drain = [](auto& in) {
    in.other_worker->retire(in.one, probe(make_fate()));
    in.other_worker->drain();
  };
  add("deleter, ended", runs("deleter::~deleter"), {make, retire_and_drain}, end);
  step const retire_by_a_thread = [](auto& in) {
    in.is_reclaimed_apart = true;
    in.other_worker = std::make_unique<deleter>();
    in.other_worker->retire(in.one, probe(in.fate()));
  };
  add("deleter with a thread, ended", runs("deleter::~deleter"), {retire_by_a_thread}, end);
}

INSTANTIATE_TEST_SUITE_P(
    Of, EveryCall,
    testing::ValuesIn(rows::of({add_events, add_scopes, add_queries, add_eager_retirements,
                                add_captured_retirements, add_shared, add_reclaims, add_deleters})),
    name_of);

}  // namespace
}  // namespace escrow::test
