// Every call of every operation of core fails once.
#include <escrow/core.hpp>
#include <escrow/detail/device.hpp>
#include <escrow/detail/graph_query.hpp>
#include <escrow/detail/ready_event.hpp>
#include <escrow/detail/retry_cleanup.hpp>

#include "../pool/capture_fixture.hpp"
#include "every_call.hpp"

namespace escrow::test {
namespace {

/// Streams, events and graphs, one of them in a capture if the operation wants it.
class core_stage : public stage {
 public:
  owned_stream one = make_stream();
  owned_stream other = make_stream();
  owned_graph plain = tiny_graph();
  std::optional<capture> captured;
  std::optional<event> mine;
  std::optional<event> taken;
  std::optional<device_scope> scope;
  std::optional<relaxed_capture_scope> relaxed;
  int device = -1;
  std::uint64_t answer = 0;  // what a question gave

  void begin_capture() {
    captured.emplace(one, cudaStreamCaptureModeGlobal);
    must(launch_tiny(one));
  }
  [[nodiscard]] std::string seen() override {
    return "event " + std::to_string(mine && *mine) + " taken " + std::to_string(taken && *taken) +
           " answer " + std::to_string(answer) + " device " + std::to_string(device) + " capture " +
           std::to_string(captured && captured->is_active());
  }
  [[nodiscard]] leftovers end(int /*way*/) override {
    if (captured) {
      EXPECT_EQ(captured->end(), cudaSuccess);
    }
    return end_all();
  }
  [[nodiscard]] leftovers end_after_loss() override { return end_all(); }

 private:
  leftovers end_all() {
    captured.reset();
    mine.reset();
    taken.reset();
    return {};
  }
};

void nothing(core_stage& /*unused*/) {}

void with_event(core_stage& in) {
  in.mine.emplace();
}

void add_events(operations_in<core_stage>& all) {
  all.add("event, made", runs({"event::event"}), nothing, [](auto& in) { in.mine.emplace(); });
  all.add("event, ended", runs({"event::~event"}), with_event, [](auto& in) { in.mine.reset(); });
  all.add("event, recorded", runs({"event_ref::record"}), with_event,
          [](auto& in) { in.mine->ref().record(in.one); });
  all.add("event, waited for", runs({"event_ref::wait"}), with_event,
          [](auto& in) { in.mine->ref().wait(in.one); });
  all.add("event, asked", runs({"event_ref::is_done"}), with_event,
          [](auto& in) { in.answer = in.mine->ref().is_done() ? 1 : 0; })
      .served_otherwise = {{"cudaEventQuery", "cudaErrorNotReady is an answer"}};
  all.add("event, synced", runs({"event_ref::sync"}), with_event,
          [](auto& in) { in.mine->ref().sync(); });
  all.add("event cache, empty", runs({"event_cache::take"}), nothing,
          [](auto& in) { in.taken.emplace(event_cache::take(0)); });
  all.add("event cache, empty, of another device", runs({"event_cache::take"}), nothing,
          [](auto& in) { in.taken.emplace(event_cache::take(1)); });
  all.add("event cache, given back", runs({"event_cache::put"}), with_event,
          [](auto& in) { event_cache::put(0, std::move(*in.mine)); });
  all.add("event cache, given back for no device", runs({"event_cache::put"}), with_event,
          [](auto& in) { event_cache::put(-1, std::move(*in.mine)); });
}

void add_ready_events(operations_in<core_stage>& all) {
  auto const record = [](core_stage& in) {
    int device = 0;
    auto const result = record_ready(*in.mine, device, in.one);
    if (result.outcome == record_outcome::failed) throw cuda_error(result.status, "record");
  };
  all.add("ready event, recorded", runs({"record_ready"}), with_event, record);
  all.add(
         "ready event, of another device", runs({"record_ready"}),
         [](auto& in) { in.mine.emplace(event_cache::take(1)); },
         [](auto& in) {
           int device = 1;
           in.answer =
               1 + static_cast<std::uint64_t>(record_ready(*in.mine, device, in.one).outcome);
         })
      .served_otherwise = {{"*", "a second try that fails is a failure, which is said"}};
}

void add_scopes(operations_in<core_stage>& all) {
  all.add("current device", runs({"current_device"}), nothing,
          [](auto& in) { in.device = current_device(); });
  all.add("device scope", runs({"device_scope::device_scope", "device_scope::~device_scope"}),
          nothing, [](auto& in) {
            device_scope const there(1);
            in.answer = 1;
          });
  all.add("relaxed scope",
          runs({"relaxed_capture_scope::relaxed_capture_scope",
                "relaxed_capture_scope::~relaxed_capture_scope"}),
          nothing, [](auto& in) {
            relaxed_capture_scope const relaxed;
            in.answer = 1;
          });
  all.add("cleanup retried", runs({"retry_cleanup"}), with_event, [](auto& in) {
    cudaEvent_t const handle = in.mine->detach();
    in.answer = retry_cleanup([&] { return cudaEventDestroy(handle); }) ? 1 : 0;
  });
  all.add("cleanup retried in relaxed mode", runs({"retry_cleanup_relaxed"}), with_event,
          [](auto& in) {
            cudaEvent_t const asked = in.mine->get();
            in.answer = retry_cleanup_relaxed([&] { return cudaEventQuery(asked); }) ? 1 : 0;
          });
}

void add_questions(operations_in<core_stage>& all) {
  auto const capturing = [](core_stage& in) { in.begin_capture(); };
  all.add("capture info, of none", runs({"capture_of"}), nothing,
          [](auto& in) { in.answer = capture_of(in.one).is_none() ? 1 : 0; });
  all.add("capture info, of a capture", runs({"capture_of"}), capturing,
          [](auto& in) { in.answer = capture_of(in.one).is_active() ? 1 : 0; });
  all.add("capture info, to use the stream", runs({"usable_capture_of"}), capturing,
          [](auto& in) { in.answer = usable_capture_of("test", in.one).is_active() ? 1 : 0; });
  all.add("stream id", runs({"stream_id"}), nothing,
          [](auto& in) { in.answer = stream_id(in.one) != 0 ? 1 : 0; });
  all.add("stream's device", runs({"device_of"}), nothing,
          [](auto& in) { in.device = device_of(in.one); });
  auto const capturing_with_events_kept = [](core_stage& in) {
    in.begin_capture();
    static_cast<void>(is_captured_on(in.one, 1));
  };
  all.add("capturing stream's device", runs({"device_of_capturing"}), capturing_with_events_kept,
          [](auto& in) { in.device = device_of_capturing(in.one, capture_of(in.one).id); });
  all.add("captured on another device", runs({"is_captured_on"}), capturing,
          [](auto& in) { in.answer = is_captured_on(in.one, 1) ? 2 : 1; });
  all.add("graph id", runs({"graph_id_of"}), nothing,
          [](auto& in) { in.answer = graph_id_of(in.plain).has_value() ? 1 : 0; });
}

std::vector<operation> const& operations() {
  static std::vector<operation> const all = [] {
    operations_in<core_stage> joined;
    add_events(joined);
    add_ready_events(joined);
    add_scopes(joined);
    add_questions(joined);
    return joined.all();
  }();
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
