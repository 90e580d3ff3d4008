// What reclaims: polls, drains, stops, and the ends of deleters.
#pragma once

#include "deleter_stage.hpp"

namespace escrow::test {

/// What there is to reclaim.
using owed = operations_in<deleter_stage>::step;

inline std::vector<std::pair<std::string, owed>> things_owed() {
  auto const share = [](deleter_stage& in) {
    in.shared = make_stream_shared_by<probe>(*in.worker, in.fate());
  };
  return {
      {"nothing", [](auto&) {}},
      {"an owner", [](auto& in) { in.worker->retire(probe(in.fate())); }},
      {"an owner of another device",
       [](auto& in) {
         device_scope const there(1);
         in.worker->retire(probe(in.fate()));
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
       [=](auto& in) {
         share(in);
         record_stream(in.shared, in.one);
         record_stream(in.shared, in.other);
         must(cudaDeviceSynchronize());
         in.shared.reset();
       }},
      {"a shared object of another device",
       [=](auto& in) {
         device_scope const there(1);
         share(in);
         record_stream(in.shared, in.one);
         must(cudaStreamSynchronize(in.one));
         in.shared.reset();
       }},
  };
}

/// What can wait for its stream only.
inline void add_busy_polls(operations_in<deleter_stage>& all) {
  auto const poll = [](deleter_stage& in) { in.worker->poll(); };
  all.add(
      "poll, an owner in use", runs({"deleter::poll"}),
      [](auto& in) {
        in.keep_busy(in.one);
        in.worker->retire(in.one, probe(in.fate()));
      },
      poll);
  all.add(
      "poll, a shared object in use", runs({"deleter::poll"}),
      [](auto& in) {
        in.keep_busy(in.one);
        in.shared = make_stream_shared_by<probe>(*in.worker, in.fate());
        record_stream(in.shared, in.one);
        record_stream(in.shared, in.other);
        in.shared.reset();
      },
      poll);
}

inline void add_reclaims(operations_in<deleter_stage>& all) {
  std::map<std::string, std::string> const later{
      {"*", "what could not be reclaimed is at the next poll"}};
  for (auto const& [what, prepare] : things_owed()) {
    // A poll that throws has reclaimed nothing: the thread could not be made ready for it.
    all.add("poll, " + what, runs({"deleter::poll"}), prepare, [](auto& in) { in.worker->poll(); })
        .served_otherwise = later;
    // A drain looks again until all is reclaimed; one that throws may have reclaimed some.
    std::map<std::string, std::string> const partly{
        {"*", "a drain that throws may have reclaimed something before, and may be repeated"}};
    all.add("drain, " + what, runs({"deleter::drain"}), prepare,
            [](auto& in) {
              in.worker->drain();
              in.has_drained = true;
            })
        .stated = partly;
    all.add("drain for a while, " + what, runs({"deleter::drain_for"}), prepare,
            [](auto& in) { in.has_drained = in.worker->drain_for(generous); })
        .stated = partly;
    all.add("stop, " + what, runs({"deleter::stop"}), prepare,
            [](auto& in) {
              in.worker->stop();
              in.has_drained = true;
            })
        .stated = {{"*", "it refuses new work at once, and then drains"}};
    all.add("stop for a while, " + what, runs({"deleter::stop_for"}), prepare,
            [](auto& in) { in.has_drained = in.worker->stop_for(generous); })
        .stated = {{"*", "it refuses new work at once, and then drains"}};
  }
}

inline void add_deleters(operations_in<deleter_stage>& all) {
  auto const make = [](deleter_stage& in) { in.other_worker = in.polled(); };
  all.add(
      "deleter, made", runs({"deleter::deleter"}), [](auto&) {}, make);
  all.add(
      "deleter with a thread, made", runs({"deleter::deleter"}), [](auto&) {},
      [](auto& in) { in.other_worker = std::make_unique<deleter>(); });
  all.add(
      "deleter, ended", runs({"deleter::~deleter"}),
      [=](auto& in) {
        make(in);
        in.other_worker->retire(in.one, probe(make_fate()));
        in.other_worker->drain();
      },
      [](auto& in) { in.other_worker.reset(); });
  all.add(
      "deleter with a thread, ended", runs({"deleter::~deleter"}),
      [](auto& in) {
        in.is_reclaimed_apart = true;
        in.other_worker = std::make_unique<deleter>();
        in.other_worker->retire(in.one, probe(in.fate()));
      },
      [](auto& in) { in.other_worker.reset(); });
}

}  // namespace escrow::test
