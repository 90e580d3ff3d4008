// An exec with conditional nodes that ends in flight waits for its launches and uploads, alone:
// CUDA's own wait holds up the calls of all threads, and so would one inside a turn
// (graph_lifetime_lock).
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "bodies_fixture.hpp"
#include "wait_until.hpp"

namespace escrow::test {
namespace {

class ConditionalEnd : public bodies_test {
 protected:
  // A graph whose body waits for the flag and then has `taken`, if there is any.
  [[nodiscard]] conditional_graph behind_flag(cargo* taken) {
    conditional_graph made;
    made.bodies = add_node(made.whole->get(), if_taken);
    capture_into(made.bodies[0], [&](cudaStream_t stream) {
      must(launch_wait_flag(stream, flag.get()));
      if (taken != nullptr) load(*taken, stream);
      must(launch_add(stream, cells.data(), 1));
    });
    return made;
  }
  // Ends the exec on a thread of its own, and meanwhile does what others do.
  void end_beside_others(std::optional<graph_exec>& exec) {
    std::atomic<bool> is_over{false};
    {
      std::jthread const ending([&] {
        exec.reset();
        is_over.store(true, std::memory_order_release);
      });
      // Before the thread is waited for, whatever happens.
      std::shared_ptr<void> const raised(nullptr, [this](void*) { flag.raise(); });
      EXPECT_TRUE(stays_false([&] { return is_over.load(std::memory_order_acquire); }));
      build_and_launch();
      EXPECT_FALSE(is_over.load(std::memory_order_acquire)) << "others waited for the launch";
    }
  }
  void build_and_launch() {
    graph const source = captured_tiny();
    graph parent;
    parent.add_child(source);
    graph_exec exec(parent);
    exec.launch(three);
    sync(three);
    static_cast<void>(source.clone());
  }
  [[nodiscard]] graph captured_tiny() {
    return escrow::capture(one, [&](stream_ref stream) { must(launch_tiny(stream.get())); });
  }
};

TEST_F(ConditionalEnd, HoldsUpNobodyElse) {
  cargo taken = make_cargo();
  conditional_graph source = behind_flag(&taken);
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  exec->launch(two);
  source.whole.reset();
  end_beside_others(exec);
  EXPECT_EQ(cells.load(), 1);
  EXPECT_TRUE(comes_back(taken));
}

TEST_F(ConditionalEnd, HoldsUpNobodyElseIfThereWereLaunchesOnSeveralStreams) {
  cargo taken = make_cargo();
  conditional_graph source = behind_flag(&taken);
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  exec->launch(two);
  exec->launch(asking);
  exec->launch(two);
  end_beside_others(exec);
  EXPECT_EQ(cells.load(), 3);
}

TEST_F(ConditionalEnd, HoldsUpNobodyElseIfTheExecHoldsNothing) {
  conditional_graph source = behind_flag(nullptr);
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  exec->launch(two);
  end_beside_others(exec);
  EXPECT_EQ(cells.load(), 1);
}

TEST_F(ConditionalEnd, HoldsUpNobodyElseWhileItIsUploaded) {
  conditional_graph source = behind_flag(nullptr);
  std::optional<graph_exec> exec(std::in_place, *source.whole, naming(source.bodies));
  must(launch_wait_flag(two, flag.get()));
  exec->upload(two);
  exec->upload(asking);  // after the one before, as CUDA serializes them
  end_beside_others(exec);
}

TEST_F(ConditionalEnd, HoldsUpNobodyElseAfterAnUpdateInFlight) {
  cargo of_first = make_cargo();
  cargo of_second = make_cargo();
  conditional_graph first = behind_flag(&of_first);
  conditional_graph second = behind_flag(&of_second);
  std::optional<graph_exec> exec(std::in_place, *first.whole, naming(first.bodies));
  exec->launch(two);
  exec->update(*second.whole, second.bodies);
  first.whole.reset();
  second.whole.reset();
  end_beside_others(exec);
  EXPECT_EQ(cells.load(), 1);
  EXPECT_TRUE(comes_back(of_first));
  EXPECT_TRUE(comes_back(of_second));
}

}  // namespace
}  // namespace escrow::test
