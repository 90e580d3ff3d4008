// A capture that another thread ends while owners are retired and slots are claimed in it.
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world.hpp"

namespace escrow::test {
namespace {

/// An owner that calls a function while it is moved for the first time: retire() does that after it
/// has asked for the capture, and before the graph has the owner.
class hooked_owner {
 public:
  hooked_owner(fate_ptr fate, std::function<void()> hook)
      : probe_(std::move(fate)), hook_(std::move(hook)) {}
  hooked_owner(hooked_owner&& other) : probe_(std::move(other.probe_)) {
    if (auto const hook = std::exchange(other.hook_, {})) hook();
  }

 private:
  probe probe_;
  std::function<void()> hook_;
};

// How another thread ends a capture while a retirement or a claim is in it.
enum class ending { with_graph, with_graph_destroyed, invalidated, invalidated_and_begun_again };
constexpr ending endings[] = {ending::with_graph, ending::with_graph_destroyed, ending::invalidated,
                              ending::invalidated_and_begun_again};

class CaptureEndsMeanwhile : public world, public testing::WithParamInterface<ending> {
 protected:
  CaptureEndsMeanwhile() { errors_expected = true; }

  void begin() { must(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed)); }
  void end_elsewhere() {
    has_ended = true;
    std::thread([this] {
      bool const is_valid =
          GetParam() == ending::with_graph || GetParam() == ending::with_graph_destroyed;
      if (!is_valid) static_cast<void>(cudaStreamQuery(one));  // no capture survives that
      cudaError_t const status = cudaStreamEndCapture(one, made.out());
      EXPECT_EQ(status == cudaSuccess, is_valid);
      static_cast<void>(cudaGetLastError());
      if (GetParam() == ending::with_graph_destroyed) made.reset();
      if (GetParam() == ending::invalidated_and_begun_again) begin();
    }).join();
  }
  // Retires an owner; the capture ends meanwhile. Whether the retirement succeeded.
  [[nodiscard]] bool retire_while_it_ends(fate_ptr const& fate) {
    bool const result = succeeds(
        [&] { worker->retire(one.get(), hooked_owner(fate, [this] { end_elsewhere(); })); });
    if (GetParam() == ending::invalidated_and_begun_again) {
      must(cudaStreamEndCapture(one, made.out()));
    }
    return result;
  }
  // What an operation in the capture may throw; whether it did not.
  template <class Operation>
  [[nodiscard]] static bool succeeds(Operation operation) {
    try {
      operation();
    } catch (usage_error const&) {
      return false;
    } catch (cuda_error const&) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    return true;
  }
  // By the worker, or by this thread if its retirement failed.
  [[nodiscard]] static bool is_destroyed(fate_ptr const& fate) {
    return fate->wait() && fate->times() == 1;
  }
  void expect_all_back(block_pool& pool, std::size_t slots) {
    EXPECT_TRUE(can_claim(pool, slots));
    EXPECT_EQ(pool.stats().deferred, 0u);
    EXPECT_EQ(worker->stats().leaked, 0u);
  }

  owned_graph made;
  bool has_ended = false;
};

INSTANTIATE_TEST_SUITE_P(Ends, CaptureEndsMeanwhile, testing::ValuesIn(endings));

TEST_P(CaptureEndsMeanwhile, WhileTheFirstOwnerIsRetired) {
  fate_ptr const fate = make_fate();
  begin();
  bool const is_taken = retire_while_it_ends(fate);
  ASSERT_TRUE(has_ended);
  if (GetParam() == ending::with_graph && is_taken) {
    EXPECT_TRUE(is_kept(fate)) << "the graph is there";
  }
  made.reset();
  EXPECT_TRUE(is_destroyed(fate));
  EXPECT_EQ(worker->stats().leaked, 0u);
}

TEST_P(CaptureEndsMeanwhile, WhileALaterOwnerIsRetired) {
  cargo first = make_cargo();
  fate_ptr const fate = make_fate();
  begin();
  load(first, one);
  block_worker();  // a set that is closed is still registered when the owner is appended
  bool const is_taken = retire_while_it_ends(fate);
  may_end.store(true);
  ASSERT_TRUE(has_ended);
  if (GetParam() == ending::with_graph) {
    EXPECT_TRUE(is_kept(first.fate)) << "the graph is there";
    EXPECT_TRUE(!is_taken || is_kept(fate));
  }
  made.reset();
  EXPECT_TRUE(is_destroyed(fate));
  EXPECT_TRUE(is_released(first));
  EXPECT_EQ(worker->stats().leaked, 0u);
}

// The pool makes a slot between asking for the capture and giving the graph the slot.
class CaptureEndsInClaim : public CaptureEndsMeanwhile {
 protected:
  [[nodiscard]] block_pool make_ending_pool(std::size_t slots_max) {
    return block_pool{options(slots_max), [this, slots_max] {
                        if (made_slots.fetch_add(1) + 1 == slots_max) end_elsewhere();
                        return block{counts};
                      }};
  }
  std::atomic<std::size_t> made_slots{0};
};

INSTANTIATE_TEST_SUITE_P(Ends, CaptureEndsInClaim,
                         testing::Values(endings[0], endings[1], endings[2]));

TEST_P(CaptureEndsInClaim, WhileTheFirstSlotIsClaimed) {
  block_pool pool = make_ending_pool(1);
  begin();
  {
    std::optional<block_lease> claimed;
    static_cast<void>(succeeds([&] { claimed.emplace(pool.claim(one.get())); }));
  }
  ASSERT_TRUE(has_ended);
  made.reset();
  expect_all_back(pool, 1);
}

TEST_P(CaptureEndsInClaim, WhileALaterSlotIsClaimed) {
  fate_ptr const fate = make_fate();
  block_pool pool = make_ending_pool(3);
  begin();
  {
    std::vector<block_lease> claimed;
    retire(one, fate);
    for (int i = 0; i < 3; ++i) {
      if (!succeeds([&] { claimed.push_back(pool.claim(one.get())); })) break;
    }
  }
  ASSERT_TRUE(has_ended);
  if (GetParam() == ending::with_graph) {
    EXPECT_TRUE(is_kept(fate));
    EXPECT_GE(pool.stats().in_graphs, 2u);
  }
  made.reset();
  EXPECT_TRUE(is_destroyed(fate));
  expect_all_back(pool, 3);
}

}  // namespace
}  // namespace escrow::test
