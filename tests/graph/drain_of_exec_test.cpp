// A drain reaches the end of the longest ways that releases go.
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "hoist_fixture.hpp"

namespace escrow::test {
namespace {

// The longest ways from an exec that is an owner itself: what its launch used goes when that is
// over, and lets go of more.
class DrainOfAnExec : public hoist_test {
 protected:
  // Retires an exec in flight of what `enqueue` captures behind the flag.
  template <class Enqueue>
  void retire_exec_of(Enqueue enqueue) {
    graph_exec exec(escrow::capture(one, [&](stream_ref stream) {
      must(launch_wait_flag(stream.get(), flag.get()));
      enqueue(stream);
    }));
    exec.launch(two);
    polled.retire(std::move(exec));
  }
  // Begins while the launch goes on, so that each step comes behind the drain's marker.
  void drain() {
    std::thread raising([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      flag.raise();
    });
    polled.drain();
    raising.join();
  }

  deleter polled{deleter_options{.own_worker = false}};
};

TEST_F(DrainOfAnExec, WaitsForAnObjectThatItsGraphSharedWithStreams) {
  fate_ptr const fate = make_fate();
  retire_exec_of([&, shared = make_stream_shared_by<probe>(polled, fate)](stream_ref stream) {
    record_stream(shared, stream);
  });
  drain();
  EXPECT_EQ(fate->times(), 1);
}

TEST_F(DrainOfAnExec, WaitsForTheResourceOfALeaseThatItsGraphOwnedAndOfAPoolThatIsGone) {
  {
    pool_options chosen = options(1);
    chosen.deleter = &polled;
    block_pool pool(chosen, [this] { return block{counts}; });
    retire_exec_of([&, held = std::optional(pool.claim(three))](stream_ref stream) mutable {
      polled.retire(stream, std::move(*held));
    });
  }
  drain();
  EXPECT_EQ(counts.alive(), 0);
}

}  // namespace
}  // namespace escrow::test
