// Memory that is freed by its address and was used on more streams than the one it is freed on.
#include <optional>
#include <string>
#include <vector>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class RecordedStreams : public pool_world {
 protected:
  static constexpr std::size_t size = 1024;

  /// The memory, which is free, is next used after the work on `two`, which is held back.
  void expect_next_waits(void const* freed) {
    void* const next = memory.allocate(one, size);
    ASSERT_EQ(next, freed);
    EXPECT_TRUE(stays_false([&] { return is_idle(one); }));
    flag.raise();
    sync(one);
    memory.deallocate(one, next);
  }
  void expect_refused(cudaStream_t stream, void* given, std::vector<std::string> const& parts) {
    expect_error<usage_error>([&] { memory.record_stream(stream, given); }, parts);
  }

  stream_allocator memory{options(1)};
};

TEST_F(RecordedStreams, MemoryComesBackAfterTheirWork) {
  void* const used = memory.allocate(one, size);
  memory.record_stream(two, used);
  hold_up(two);
  memory.deallocate(one, used);
  expect_next_waits(used);
}

TEST_F(RecordedStreams, MemoryOfAGraphMayBeUsedOnThemAfterTheCapture) {
  void* output = nullptr;
  {
    owned_graph const captured = captured_plainly([&](cudaStream_t on) {
      output = memory.allocate(on, size);
      must(cudaMemsetAsync(output, 1, size, on));
      expect_refused(two, output, {"record_stream", "is not part of the capture"});
    });
    memory.record_stream(two, output);
  }
  hold_up(two);
  memory.deallocate(one, output);
  expect_next_waits(output);
}

TEST_F(RecordedStreams, OfACaptureKeepItsMemoryFromItsGraphIfTheyAreRecordedAfterIt) {
  errors_expected = true;
  std::optional<stream_allocator> last(options(8));
  void* output = nullptr;
  owned_graph const captured = captured_plainly([&](cudaStream_t on) {
    output = last->allocate(on, size);
    order(on, two);
    last->record_stream(two, output);
    must(cudaMemsetAsync(output, 1, size, two));
    order(two, on);
  });
  last->record_stream(two, output);
  expect_error<usage_error>([&] { last->leave_to_graph(output); },
                            {"is used after it on a stream", "deallocate it"});
  last.reset();
  EXPECT_EQ(worker->stats().leaked, 1U);
}

TEST_F(RecordedStreams, OfACaptureAreRefusedForOtherMemory) {
  void* const eager = memory.allocate(one, size);
  capture captured{two, cudaStreamCaptureModeGlobal};
  expect_refused(two, eager, {"record_stream", "the lease was claimed outside"});
  must(captured.end());
  memory.deallocate(one, eager);
}

TEST_F(RecordedStreams, AreRefusedForWhatIsNotAllocated) {
  void* const used = memory.allocate(one, size);
  expect_refused(two, &memory, {"stream_allocator::record_stream", "`memory` is not allocated"});
  memory.deallocate(one, used);
  expect_refused(two, used, {"stream_allocator::record_stream", "`memory` is not allocated"});
}

}  // namespace
}  // namespace escrow::test
