// Every call of every operation of core fails once; and what becomes of an event whose record
// fails.
#include <escrow/core.hpp>
#include <escrow/internal/device.hpp>
#include <escrow/internal/graph_query.hpp>
#include <escrow/internal/ready_event.hpp>
#include <escrow/internal/retry_cleanup.hpp>

#include "every_call.hpp"
#include "fault_world.hpp"

namespace escrow::test {
namespace {

/// Streams, events and graphs, one of them in a capture if the operation wants it.
class core_stage : public fault_world {
 public:
  owned_graph plain = tiny_graph();
  std::optional<event> mine;
  std::optional<event> taken;
  int device = -1;

  [[nodiscard]] std::string seen() override {
    return text_of("event", mine && *mine, "taken", taken && *taken, "answer", answer, "device",
                   device, "capture", is_capturing());
  }

 private:
  leftovers end_all(bool /*is_lost*/, bool /*is_end_known*/) override {
    mine.reset();
    taken.reset();
    return {};
  }
};

using rows = operations_in<core_stage>;
using step = rows::step;

step const with_event = [](auto& in) { in.mine.emplace(); };

/// Keeps a result as text.
template <class Query>
step answer_of(Query query) {
  return [=](auto& in) { in.answer = std::to_string(query(in)); };
}

void add_events(rows& add) {
  add("event, made", runs("event::event"), {}, with_event);
  add("event, ended", runs("event::event"), {with_event}, [](auto& in) { in.mine.reset(); });
  add("event, recorded", runs("event_ref::record"), {with_event},
      [](auto& in) { in.mine->ref().record(in.one); });
  add("event, waited for", runs("event_ref::wait"), {with_event},
      [](auto& in) { in.mine->ref().wait(in.one); });
  add("event, asked", runs("event_ref::is_done"), {with_event},
      answer_of([](auto& in) { return in.mine->ref().is_done(); }))
      .served_otherwise = {{"cudaEventQuery", "cudaErrorNotReady is an answer"}};
  add("event, synced", runs("event_ref::sync"), {with_event},
      [](auto& in) { in.mine->ref().sync(); });
  auto const takes = runs("event_cache::take");
  add("event cache, empty", takes, {}, [](auto& in) { in.taken.emplace(event_cache::take(0)); });
  add("event cache, empty, of another device", takes, {},
      [](auto& in) { in.taken.emplace(event_cache::take(1)); });
  auto const puts = runs("event_cache::put");
  add("event cache, given back", puts, {with_event},
      [](auto& in) { event_cache::put(0, std::move(*in.mine)); });
  add("event cache, given back for no device", puts, {with_event},
      [](auto& in) { event_cache::put(-1, std::move(*in.mine)); });
  auto const records = runs("record_ready");
  add("ready event, recorded", records, {with_event}, [](auto& in) {
    int device = 0;
    auto const result = record_ready(*in.mine, device, in.one);
    if (result.outcome == record_outcome::failed) throw cuda_error(result.status, "record");
  });
  add("ready event, of another device", records,
      {[](auto& in) { in.mine.emplace(event_cache::take(1)); }}, answer_of([](auto& in) {
        int device = 1;
        return static_cast<int>(record_ready(*in.mine, device, in.one).outcome);
      }))
      .served_otherwise = {{"*", "a second try that fails is a failure, which is reported"}};
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
        cudaEvent_t const handle = in.mine->detach();
        return retry_cleanup([&] { return cudaEventDestroy(handle); });
      }));
  add("cleanup retried in relaxed mode", runs("retry_cleanup_relaxed"), {with_event},
      answer_of([](auto& in) {
        cudaEvent_t const asked = in.mine->get();
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
      [](auto& in) { in.device = device_of_capturing(in.one, capture_of(in.one).id); });
  add("graph id", runs("graph_id_of"), {},
      answer_of([](auto& in) { return graph_id_of(in.plain).has_value(); }));
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall,
                         testing::ValuesIn(rows::of({add_events, add_scopes, add_queries})),
                         name_of);

/// How a ready event is recorded while some calls fail.
struct record_case {
  char const* name;
  std::vector<std::pair<char const*, cudaError_t>> failing;  // the n-th of a name is its n-th call
  int device;                                                // of the stream; the event is of 0
  record_outcome outcome;
  cudaError_t status;
};

void PrintTo(record_case const& it, std::ostream* out) {
  *out << it.name;
}

class ReadyEvent : public testing::TestWithParam<record_case> {
 protected:
  void TearDown() override { sim::clear_faults(); }

  /// Leaves so many events of device 0 in the cache.
  static void fill_cache(std::size_t count) {
    std::vector<event> kept;
    std::size_t const made = sim::calls("cudaEventCreateWithFlags");
    while (sim::calls("cudaEventCreateWithFlags") == made) kept.push_back(event_cache::take(0));
    for (; count != 0; --count) event_cache::put(0, event());
    for (event& each : kept) must(cudaEventDestroy(each.detach()));
  }
  static bool tracks_work(event const& ready, int device, cudaStream_t stream) {
    pinned_flag flag;
    device_scope const there(device);
    must(launch_wait_flag(stream, flag.get()));
    must(cudaEventRecord(ready.get(), stream));
    bool const before = ready.ref().is_done();
    flag.raise();
    ready.ref().sync();
    return !before && ready.ref().is_done();
  }
};

TEST_P(ReadyEvent, IsRecordedOrReplacedByAFreshOneOrLeftAsItWas) {
  record_case const& it = GetParam();
  std::optional<device_scope> there(it.device);
  owned_stream const stream = make_stream();
  there.reset();
  fill_cache(it.device == 0 && it.failing.size() < 2 ? 1 : 0);
  event ready;
  cudaEvent_t const handle = ready.get();
  std::size_t const before = sim::alive().events;
  std::map<std::string, std::uint64_t> nth;
  for (auto const& [api, error] : it.failing) sim::fail_call(api, error, ++nth[api]);
  int device = 0;
  record_result const result = record_ready(ready, device, stream);
  sim::clear_faults();
  EXPECT_EQ(result.outcome, it.outcome);
  EXPECT_EQ(result.status, it.status);
  bool const is_fresh = it.outcome == record_outcome::recorded_anew;
  EXPECT_EQ(ready.get() != handle, is_fresh);
  EXPECT_EQ(device, is_fresh ? it.device : 0);
  EXPECT_EQ(current_device(), 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(it.outcome == record_outcome::failed || tracks_work(ready, device, stream));
  if (it.device == 0) {
    EXPECT_EQ(sim::alive().events, is_fresh ? before - 1 : before) << "a refused event is not kept";
  }
}

constexpr auto refused = cudaErrorInvalidValue;
constexpr auto anew = record_outcome::recorded_anew;

/// Two calls fail while a record is tried: nothing has changed.
record_case no_second_try(char const* name, char const* api) {
  return {name,
          {{"cudaEventRecord", refused}, {api, cudaErrorMemoryAllocation}},
          0,
          record_outcome::failed,
          refused};
}

record_case const record_cases[] = {
    {"NothingFails", {}, 0, record_outcome::recorded, cudaSuccess},
    {"TheStreamIsOfAnotherDevice", {}, 1, anew, cudaErrorInvalidResourceHandle},
    {"ARecordIsRefused", {{"cudaEventRecord", refused}}, 0, anew, refused},
    no_second_try("TwoRecordsAreRefused", "cudaEventRecord"),
    no_second_try("TheStreamsDeviceIsUnknown", "cudaStreamGetDevice"),
    no_second_try("NoEventCanBeMade", "cudaEventCreateWithFlags"),
    no_second_try("TheCurrentDeviceIsUnknown", "cudaGetDevice"),
};
INSTANTIATE_TEST_SUITE_P(While, ReadyEvent, testing::ValuesIn(record_cases),
                         [](auto const& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace escrow::test
