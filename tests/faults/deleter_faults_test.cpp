// Every call of every operation of deleters fails once: retire, share, poll, drain, stop.
#include "every_call.hpp"
#include "fault_world.hpp"

namespace escrow::test {
namespace {

using rows = operations_in<deleter_stage>;
using step = rows::step;

step busy() {
  return [](auto& in) { in.keep_busy(in.one); };
}
step owner() {
  return [](auto& in) { in.have_owner(); };
}
step capturing() {
  return [](auto& in) { in.begin_capture(in.one); };
}
step shared() {
  return [](auto& in) { in.share(); };
}
step used_on_one() {
  return [](auto& in) { record_stream(in.shared, in.one); };
}
step retire_on_one() {
  return [](auto& in) { in.worker->retire(in.one, std::move(*in.mine)); };
}
step poll() {
  return [](auto& in) { in.worker->poll(); };
}
/// The steps on device 1, with a stream of that device in place of the given one.
step elsewhere(owned_stream deleter_stage::*stream, rows::steps steps) {
  return [=](auto& in) {
    device_scope const there(1);
    in.*stream = make_stream();
    for (step const& each : steps) each(in);
  };
}

void add_eager_retirements(rows& add) {
  auto const retire = runs("deleter::retire");
  add("retire, after a stream", retire, {busy(), owner()}, retire_on_one());
  add("retire, again after a stream", retire,
      {[](auto& in) { in.worker->retire(in.one, probe(make_fate())); }, busy(), owner()},
      retire_on_one());
  add("retire, a large owner", retire, {busy(), [](auto& in) { in.large.emplace(in.fate()); }},
      [](auto& in) { in.worker->retire(in.one, std::move(*in.large)); });
  auto& on_device_1 =
      add("retire, on the stream of another device", retire,
          {elsewhere(&deleter_stage::other, {[](auto& in) { in.keep_busy(in.other); }, owner()})},
          [](auto& in) { in.worker->retire(in.other, std::move(*in.mine)); });
  on_device_1.stated = {{"*", "if nothing can be recorded, the owner is leaked and counted"}};
  on_device_1.stated_shows = "leaked 1";
  on_device_1.refused_first = cudaErrorInvalidResourceHandle;  // the record with device 0's event
  add("retire, without a stream", retire, {owner()},
      [](auto& in) { in.worker->retire(std::move(*in.mine)); });
  add("retire, after an event", runs("deleter::retire_after"),
      {busy(), owner(), [](auto& in) { must(cudaEventRecord(in.ready, in.one)); }},
      [](auto& in) { in.worker->retire_after(in.ready.get(), std::move(*in.mine)); });
  add("retain, with the process's own deleter", runs("retain"),
      {owner(), [](auto& in) { in.uses_global = in.is_reclaimed_apart = true; }},
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
  add("retire, in a capture", retire, {owner(), capturing()}, retire_on_one()).stated = refused;
  add("retire, in a capture of another device", retire,
      {elsewhere(&deleter_stage::one, {owner(), capturing()})}, retire_on_one())
      .stated = refused;
  add("retire, with a graph", retire, {owner()}, [](auto& in) {
    in.worker->retire(in.plain.get(), std::move(*in.mine));
  }).stated = refused;
  auto const around = runs("deleter::retire_around");
  add("retire, around work", around, {busy(), owner()}, retire_around_work);
  add("retire, around work in a capture", around, {owner(), capturing()}, retire_around_work)
      .stated = {{"*", "in a capture the graph has the owner before the work is enqueued"}};
}

void add_shared(rows& add) {
  statements const taken{
      {"operator new", "the object may have been made, and is destroyed by the worker"}};
  add("shared object, made", runs("make_stream_shared_by"), {owner()}, [](auto& in) {
    in.shared = make_stream_shared_by<probe>(*in.worker, std::move(*in.mine));
  }).stated = taken;
  add("shared object, made by the process's own deleter", runs("make_stream_shared"), {owner()},
      [](auto& in) { in.shared = make_stream_shared<probe>(std::move(*in.mine)); })
      .stated = taken;
  auto const recorded = runs("record_stream");
  auto const add_use = [&](char const* name, rows::steps before) {
    auto& use = add(name, recorded, std::move(before), used_on_one());
    use.stated = {{"*", "the work may use the object, which is leaked and counted"}};
    use.stated_shows = "leaked 1";
  };
  add_use("shared object, used", {shared(), busy()});
  add_use("shared object, used again", {shared(), used_on_one(), busy()});
  step const used_on_four = [](auto& in) {
    for (int i = 0; i < 4; ++i) record_stream(in.shared, make_stream());
  };
  add_use("shared object, used on many streams", {shared(), used_on_four, busy()});
  add("shared object, used in a capture", recorded,
      {shared(), capturing(), [](auto& in) { in.polls_when_seen = true; }}, used_on_one());
}

/// What waits to be reclaimed, and is not in use.
std::vector<std::pair<std::string, step>> things_to_reclaim() {
  step const retired = [](auto& in) { in.worker->retire(probe(in.fate())); };
  return {
      {"nothing", [](auto&) {}},
      {"an owner", retired},
      {"an owner of another device",
       [=](auto& in) {
         device_scope const there(1);
         retired(in);
         in.reclaimed_on = 1;
       }},
      {"an owner after its stream",
       [](auto& in) {
         in.worker->retire(in.one, probe(in.fate()));
         must(cudaStreamSynchronize(in.one));
       }},
      {"two owners after their streams",
       [](auto& in) {
         in.worker->retire(in.one, probe(in.fate()));
         in.worker->retire(in.other, probe(in.fate()));
         in.reclaimed_on = 0;
         must(cudaDeviceSynchronize());
       }},
      {"an owner after an event",
       [](auto& in) {
         must(cudaEventRecord(in.ready, in.one));
         in.worker->retire_after(in.ready.get(), probe(in.fate()));
         must(cudaStreamSynchronize(in.one));
       }},
      {"an owner of a graph",
       [](auto& in) {
         in.worker->retire(in.plain.get(), probe(in.fate()));
         in.plain.reset();
       }},
      {"a shared object",
       [](auto& in) {
         in.share();
         record_stream(in.shared, in.one);
         record_stream(in.shared, in.other);
         must(cudaDeviceSynchronize());
         in.shared.reset();
       }},
      {"a shared object of another device",
       [](auto& in) {
         device_scope const there(1);
         in.share();
         record_stream(in.shared, in.one);
         must(cudaStreamSynchronize(in.one));
         in.shared.reset();
         in.reclaimed_on = 1;
       }},
  };
}

void add_reclaims(rows& add) {
  add("poll, an owner in use", runs("deleter::poll"),
      {busy(), [](auto& in) { in.worker->retire(in.one, probe(in.fate())); }}, poll());
  step const drop_used = [](auto& in) {
    record_stream(in.shared, in.one);
    record_stream(in.shared, in.other);
    in.shared.reset();
  };
  add("poll, a shared object in use", runs("deleter::poll"), {busy(), shared(), drop_used}, poll());
  statements const partly{
      {"*", "a drain that throws may have reclaimed something before, and may be repeated"}};
  statements const closed{{"*", "it refuses new work at once, and then drains"}};
  for (auto const& [what, prepare] : things_to_reclaim()) {
    // A poll that throws has reclaimed nothing: the thread could not be made ready for it.
    add("poll, " + what, runs("deleter::poll"), {prepare}, poll()).served_otherwise = at_next_poll;
    add("drain, " + what, runs("deleter::drain"), {prepare}, [](auto& in) {
      in.worker->drain();
      in.has_drained = true;
    }).stated = partly;
    add("drain for a while, " + what, runs("deleter::drain_for"), {prepare}, [](auto& in) {
      in.has_drained = in.worker->drain_for(generous);
    }).stated = partly;
    add("stop, " + what, runs("deleter::stop"), {prepare}, [](auto& in) {
      in.worker->stop();
      in.has_drained = true;
    }).stated = closed;
    add("stop for a while, " + what, runs("deleter::stop_for"), {prepare}, [](auto& in) {
      in.has_drained = in.worker->stop_for(generous);
    }).stated = closed;
  }
}

void add_deleters(rows& add) {
  step const make = [](auto& in) { in.other_worker = in.polled(); };
  step const end = [](auto& in) { in.other_worker.reset(); };
  add("deleter, made", runs("deleter::deleter"), {}, make);
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

std::vector<operation> operations() {
  rows add;
  add_eager_retirements(add);
  add_captured_retirements(add);
  add_shared(add);
  add_reclaims(add);
  add_deleters(add);
  return add.all();
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
