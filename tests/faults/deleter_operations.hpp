// Retiring, sharing, draining and reclaiming.
#pragma once

#include "deleter_stage.hpp"

namespace escrow::test {

/// What the header says of retire() with a graph.
inline std::map<std::string, std::string> refused_user_object() {
  std::string const text =
      "if CUDA refuses the user object, the owner is either still the caller's or destroyed by the "
      "worker";
  return {
      {"cudaUserObjectCreate", text}, {"cudaGraphRetainUserObject", text}, {"operator new", text}};
}

inline void add_eager_retirements(operations_in<deleter_stage>& all) {
  auto const retire = runs({"deleter::retire"});
  auto const busy = [](deleter_stage& in) {
    in.keep_busy(in.one);
    in.have_owner();
  };
  auto const idle = [](deleter_stage& in) { in.have_owner(); };
  all.add("retire, after a stream", retire, busy,
          [](auto& in) { in.worker->retire(in.one, std::move(*in.mine)); });
  all.add(
      "retire, again after a stream", retire,
      [=](auto& in) {
        in.worker->retire(in.one, probe(in.fate()));
        busy(in);
        in.fates.erase(in.fates.begin());  // of an owner that may go at any time
      },
      [](auto& in) { in.worker->retire(in.one, std::move(*in.mine)); });
  all.add(
      "retire, a large owner", retire,
      [](auto& in) {
        in.keep_busy(in.one);
        in.large.emplace(in.fate());
      },
      [](auto& in) { in.worker->retire(in.one, std::move(*in.large)); });
  auto& elsewhere = all.add(
      "retire, on the stream of another device", retire,
      [=](auto& in) {
        device_scope const there(1);
        in.other = make_stream();
        in.keep_busy(in.other);
        in.have_owner();
      },
      [](auto& in) { in.worker->retire(in.other, std::move(*in.mine)); });
  elsewhere.stated = {{"*", "if nothing can be recorded, the owner is kept for ever and counted"}};
  elsewhere.stated_shows = "held 1";
  elsewhere.refused_first = cudaErrorInvalidResourceHandle;  // the record with our device's event
  all.add("retire, without a stream", retire, idle,
          [](auto& in) { in.worker->retire(std::move(*in.mine)); });
  all.add(
      "retire, after an event", runs({"deleter::retire_after"}),
      [=](auto& in) {
        busy(in);
        must(cudaEventRecord(in.ready, in.one));
      },
      [](auto& in) { in.worker->retire_after(in.ready.get(), std::move(*in.mine)); });
  all.add("retire, around work", runs({"deleter::retire_around"}), busy, [](auto& in) {
    auto const enqueue = [&in] { escrow::check(launch_tiny(in.one), "cudaLaunchKernel"); };
    auto owner = std::make_unique<std::optional<probe>>();
    in.worker->retire_around(
        "test", in.one, std::move(owner),
        [&in](auto& placed) { placed->emplace(std::move(*in.mine)); }, enqueue);
  });
  all.add(
      "retain, with the process's own deleter", runs({"retain"}),
      [=](auto& in) {
        idle(in);
        in.uses_global = true;
        in.is_reclaimed_apart = true;
      },
      [](auto& in) { retain(in.one, std::move(*in.mine)); });
}

inline void add_captured_retirements(operations_in<deleter_stage>& all) {
  auto const capturing = [](deleter_stage& in) {
    in.have_owner();
    in.begin_capture();
  };
  all.add("retire, in a capture", runs({"deleter::retire"}), capturing,
          [](auto& in) { in.worker->retire(in.one, std::move(*in.mine)); })
      .stated = refused_user_object();
  all.add(
         "retire, in a capture of another device", runs({"deleter::retire"}),
         [](auto& in) {
           device_scope const there(1);
           in.one = make_stream();
           in.have_owner();
           in.begin_capture();
         },
         [](auto& in) { in.worker->retire(in.one, std::move(*in.mine)); })
      .stated = refused_user_object();
  all.add(
         "retire, with a graph", runs({"deleter::retire"}), [](auto& in) { in.have_owner(); },
         [](auto& in) { in.worker->retire(in.plain.get(), std::move(*in.mine)); })
      .stated = refused_user_object();
  all.add("retire, around work in a capture", runs({"deleter::retire_around"}), capturing,
          [](auto& in) {
            auto const enqueue = [&in] { escrow::check(launch_tiny(in.one), "cudaLaunchKernel"); };
            auto owner = std::make_unique<std::optional<probe>>();
            in.worker->retire_around(
                "test", in.one, std::move(owner),
                [&in](auto& placed) { placed->emplace(std::move(*in.mine)); }, enqueue);
          })
      .stated = {{"*", "in a capture the graph has the owner before the work is enqueued"}};
}

inline void add_shared(operations_in<deleter_stage>& all) {
  auto const share = [](deleter_stage& in) {
    in.shared = make_stream_shared_by<probe>(*in.worker, in.fate());
  };
  auto const use_one = [](deleter_stage& in) { record_stream(in.shared, in.one); };
  // Its constructor takes over what it is made of.
  std::map<std::string, std::string> const taken{
      {"operator new", "the object may have been made, and is destroyed by the worker"}};
  all.add(
         "shared object, made", runs({"make_stream_shared_by"}), [](auto& in) { in.have_owner(); },
         [](auto& in) {
           in.shared = make_stream_shared_by<probe>(*in.worker, std::move(*in.mine));
         })
      .stated = taken;
  all.add(
         "shared object, made by the process's own deleter", runs({"make_stream_shared"}),
         [](auto& in) { in.have_owner(); },
         [](auto& in) { in.shared = make_stream_shared<probe>(std::move(*in.mine)); })
      .stated = taken;
  auto const used = runs({"record_stream"});
  auto const add_use = [&](char const* name, operations_in<deleter_stage>::step prepare) {
    auto& use = all.add(name, used, std::move(prepare), use_one);
    use.stated = {{"*", "the work may use the object, which is kept for good and counted"}};
    use.stated_shows = "held 1";
  };
  add_use("shared object, used", [=](auto& in) {
    share(in);
    in.keep_busy(in.one);
  });
  add_use("shared object, used again", [=](auto& in) {
    share(in);
    record_stream(in.shared, in.one);
    in.keep_busy(in.one);
  });
  add_use("shared object, used on many streams", [=](auto& in) {
    share(in);
    for (int i = 0; i < 4; ++i) record_stream(in.shared, make_stream());
    in.keep_busy(in.one);
  });
  all.add(
      "shared object, used in a capture", used,
      [=](auto& in) {
        share(in);
        in.begin_capture();
        in.polls_when_seen = true;
      },
      use_one);
}

}  // namespace escrow::test
