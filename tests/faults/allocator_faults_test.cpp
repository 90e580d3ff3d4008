// Every call of every operation of stream_allocator fails once.
#include "every_call.hpp"
#include "fault_world.hpp"

namespace escrow::test {
namespace {

class allocator_stage : public fault_world {
 public:
  static constexpr std::size_t size = 300;
  static constexpr std::size_t block = 320;  // of which it is

  std::optional<stream_allocator> memory;
  void* held = nullptr;
  bool is_busy = false;  // its work runs until the flag is raised

  void make() { memory.emplace(pool_options{.slots_max = 2, .deleter = worker.get()}); }
  void allocate(cudaStream_t stream) { held = memory->allocate(stream, size); }
  void free_on(cudaStream_t stream) {
    memory->deallocate(stream, held);
    held = nullptr;
  }
  void keep_busy(cudaStream_t stream) {
    must(launch_wait_flag(stream, flag.get()));
    must(cudaMemsetAsync(held, 1, size, stream));
    is_busy = true;
  }

  [[nodiscard]] std::string seen() override {
    worker->core().recycle();
    std::string const text = text_of("allocator", memory.has_value(), "held", held != nullptr);
    if (!memory) return text;
    scratch_stats const now = memory->pool().stats();
    return text + text_of("in use", now.bytes_in_use, "in graphs", now.bytes_in_graphs);
  }

 private:
  void before_end(bool is_lost) override {
    if (!is_lost && is_busy && held == nullptr && memory) {
      try_to_poll();
      EXPECT_EQ(memory->pool().stats().returned, 0U) << "freed while the work may run";
    }
  }
  leftovers end_all(bool is_lost, bool /*is_end_known*/) override {
    if (!is_lost && memory) {
      if (held != nullptr) memory->deallocate(one, held);
      // Given the stream, it records what was deferred.
      memory->deallocate(one, memory->allocate(one, size));
    }
    memory.reset();
    EXPECT_TRUE(worker->drain_for(generous)) << "a drain hangs";
    sim::run_until_idle();
    leftovers left;
    left.device_allocations = static_cast<std::size_t>(worker->stats().leaked);
    left.device_bytes = left.device_allocations * block;
    left.events = 3 * left.device_allocations;
    left.streams = 1;
    return left;
  }
};

using rows = operations_in<allocator_stage>;
using step = rows::step;

step const make = [](auto& in) { in.make(); };
step const allocate = [](auto& in) { in.allocate(in.one); };
step const deallocate = [](auto& in) { in.free_on(in.one); };
step const deallocate_on_other = [](auto& in) { in.free_on(in.other); };
step const busy = [](auto& in) { in.keep_busy(in.one); };
step const busy_on_other = [](auto& in) { in.keep_busy(in.other); };
step const end_capture = [](auto& in) {
  must(in.captured->end());
  in.captured.reset();
};

void add_calls(rows& add) {
  auto const allocates = runs("stream_allocator::allocate");
  auto const frees = runs("stream_allocator::deallocate");
  auto const leaves = runs("stream_allocator::leave_to_graph");
  step const allocate_now = [](auto& in) { in.held = in.memory->allocate(allocator_stage::size); };
  step const free_now = [](auto& in) {
    in.memory->deallocate(in.held);
    in.held = nullptr;
  };
  step const leave = [](auto& in) {
    in.memory->leave_to_graph(in.held);
    in.held = nullptr;
  };
  add("allocator, made", runs("stream_allocator::stream_allocator"), {}, make);
  add("allocator, allocate", allocates, {make}, allocate);
  add("allocator, allocate freed memory", allocates,
      {make, allocate, busy_on_other, deallocate_on_other}, allocate);
  add("allocator, allocate in a capture", allocates, {make, capturing}, allocate).stated = {
      {"operator new", "without memory for the address, the graph keeps what it got"}};
  add("allocator, allocate without a stream", allocates, {make}, allocate_now);
  add("allocator, deallocate", frees, {make, allocate, busy}, deallocate);
  add("allocator, deallocate on another stream", frees, {make, allocate, busy_on_other},
      deallocate_on_other);
  add("allocator, deallocate in a capture", frees, {make, capturing, allocate}, deallocate);
  add("allocator, deallocate after the capture", frees, {make, capturing, allocate, end_capture},
      deallocate_on_other);
  add("allocator, deallocate in a later capture", frees, {make, allocate, capturing}, deallocate);
  add("allocator, deallocate without a stream", frees, {make, allocate_now}, free_now);
  step const end = [](auto& in) {
    in.memory.reset();
    in.held = nullptr;
  };
  add("allocator, end with memory allocated", runs("stream_allocator::stream_allocator"),
      {make, allocate}, end);
  add("allocator, leave to the graph", leaves, {make, capturing, allocate}, leave);
}

std::vector<operation> operations() {
  return rows::of({add_calls});
}

INSTANTIATE_TEST_SUITE_P(Allocators, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test
