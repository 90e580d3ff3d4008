// SPDX-License-Identifier: Apache-2.0
// Captures as function calls, and graphs as values: what each operation gives, and that none of
// them harms a capture. A capture that another thread ends during a call.
#include <escrow/nodes.hpp>
#include <stdexcept>

#include "world.hpp"

namespace escrow::test {
namespace {

template <class Value>
constexpr bool is_move_only =
    !std::is_copy_constructible_v<Value> && !std::is_copy_assignable_v<Value> &&
    std::is_nothrow_move_constructible_v<Value> && std::is_nothrow_move_assignable_v<Value> &&
    !std::is_convertible_v<cudaGraph_t, Value>;
static_assert(is_move_only<graph> && is_move_only<graph_exec> && is_move_only<hoisted>);

class Capture : public world, public testing::WithParamInterface<cudaStreamCaptureMode> {
 protected:
  template <class Enqueue>
  [[nodiscard]] graph capture_one(Enqueue&& enqueue) {
    return escrow::capture(one.get(), std::forward<Enqueue>(enqueue), GetParam());
  }
  [[nodiscard]] bool is_capturing() { return !capture_of(one.get()).is_none(); }
  void expect_dropped() {
    EXPECT_TRUE(is_released(fate)) << "what was captured was not dropped";
    EXPECT_FALSE(is_capturing());
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_NO_THROW(static_cast<void>(capture_one([](stream_ref) {})));
  }

  fate_ptr fate = make_fate();
};

INSTANTIATE_TEST_SUITE_P(Modes, Capture, testing::ValuesIn(all_capture_modes));

TEST_P(Capture, ReturnsTheGraphOfWhatWasEnqueuedAndRunsNothing) {
  struct once {
    cudaStream_t stream;
    int* cell;
    void operator()(stream_ref on) && {
      EXPECT_EQ(on.get(), stream);
      EXPECT_TRUE(capture_of(on).is_active());
      must(launch_add(on.get(), cell, 1));
      must(launch_add(on.get(), cell, 10));
    }
  };
  graph const made = capture_one(once{one, cells.data()});
  EXPECT_FALSE(is_capturing());
  EXPECT_EQ(node_count(made.get()), 2U);
  sync(one);
  EXPECT_EQ(cells.load(), 0);
  run(made);
  EXPECT_EQ(cells.load(), 11);
}

TEST_P(Capture, ThatThrowsIsEndedAndDropped) {
  EXPECT_THROW(static_cast<void>(capture_one([&](stream_ref on) {
                 must(launch_tiny(on.get()));
                 retire(on.get(), fate);
                 throw std::logic_error("out");
               })),
               std::logic_error);
  expect_dropped();
}

TEST_P(Capture, WhoseCallReturnsAnErrorIsDropped) {
  auto const fail = [&](stream_ref on) {
    retire(on.get(), fate);
    return cudaErrorInvalidValue;
  };
  expect_error<cuda_error>(
      [&] { return capture_one(fail); },
      {"graph_test.cpp", "capture: the function returned cudaErrorInvalidValue"});
  expect_dropped();
}

TEST_P(Capture, NeedNotGiveItsStreamToTheCall) {
  graph const made = escrow::capture(
      one.get(), [&] { return launch_tiny(one.get()); }, GetParam());
  EXPECT_EQ(node_count(made.get()), 1U);
}

TEST_P(Capture, OfAScopeThatIsNotEndedIsDropped) {
  {
    capture_scope const scope(one.get(), GetParam());
    retire(one, fate);
  }
  expect_dropped();
}

TEST_P(Capture, ThatWasInvalidatedIsAnErrorAndIsDropped) {
  auto const invalidate = [&](stream_ref on) {
    retire(on.get(), fate);
    must(cudaDeviceSynchronize() != cudaSuccess, "it invalidates the capture");
  };
  expect_error<cuda_error>([&] { return capture_one(invalidate); },
                           {"cudaStreamEndCapture", "cudaErrorStreamCaptureInvalidated"});
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnsupported) << "of the caller's own call";
  expect_dropped();
}

TEST_P(Capture, WithAForkThatWasNotJoinedIsAnErrorAndEndsOnBothStreams) {
  auto const fork = [&](stream_ref on) {
    retire(on.get(), fate);
    order(on.get(), two);
    must(launch_tiny(two));
  };
  expect_error<cuda_error>([&] { return capture_one(fork); }, {});
  EXPECT_TRUE(capture_of(two.get()).is_none());
  expect_dropped();
}

TEST_P(Capture, OfAStreamThatIsCapturedAlreadyIsAnErrorAndHarmsNothing) {
  graph const outer = capture_one([&](stream_ref on) {
    must(launch_tiny(on.get()));
    EXPECT_THROW(static_cast<void>(capture_one([](stream_ref) {})), cuda_error);
    graph const of_other = escrow::capture(
        two.get(), [](stream_ref) {}, GetParam());
    EXPECT_EQ(node_count(of_other.get()), 0U);
  });
  EXPECT_EQ(node_count(outer.get()), 1U);
}

class Graph : public world {
 protected:
  fate_ptr fate = make_fate();
};

TEST_F(Graph, ReleasesWhatItHeldWhenItIsDestroyedOrAssignedAnother) {
  graph assigned;
  worker->retire(assigned.get(), probe(fate));
  graph& same = assigned;
  assigned = std::move(same);
  ASSERT_NE(assigned.get(), nullptr);
  EXPECT_TRUE(is_kept(fate)) << "of an assignment to itself";
  graph other;
  assigned = std::move(other);
  EXPECT_TRUE(is_released(fate)) << "the moved-from graph keeps what the other held";
}

TEST_F(Graph, IsNullOnceMovedFromOrDetached) {
  graph first;
  cudaGraph_t const handle = first.get();
  EXPECT_EQ(node_count(handle), 0U);
  graph second = std::move(first);
  EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): that is tested
  EXPECT_EQ(second.get(), handle);
  owned_graph const kept(second.detach());
  EXPECT_EQ(second.get(), nullptr);
  EXPECT_EQ(kept.get(), handle);
}

// What is done with graphs while a stream is captured.
class CaptureSafety : public Graph {
 protected:
  // Launches five times.
  void use_graphs() {
    graph source;
    build(source).add(kernel_node(kernel(kernel_address(kernel_id::add)), {}, cells.data(), 1));
    worker->retire(source.get(), probe(make_fate()));
    graph copy = source.clone();
    graph parent;
    parent.add_child(source);
    graph_exec exec(source);
    EXPECT_EQ(exec.held().owners, source.held().owners);
    exec.launch(two);
    exec.update(copy);
    exec.launch(two);
    hoisted held = hoist(parent);
    held.release_after(two);
    hoist(copy).release();
    parent = graph();
    stream_launcher(std::move(exec), two).launch();
    exec_set set;
    exec_set::member const first = set.add(source.clone());
    set.launch(set.add(std::move(source)), two);
    set.launch(first, two);
  }
};

TEST_F(CaptureSafety, OfEverythingOnTheThreadOfTheCaptureAndOnAnother) {
  for (cudaStreamCaptureMode const mode : all_capture_modes) {
    test::capture open{one, mode};
    use_graphs();
    std::thread([this] { use_graphs(); }).join();
    must(launch_tiny(one));
    EXPECT_EQ(open.end(), cudaSuccess) << mode;
  }
  sync(two);
  EXPECT_EQ(cells.load(), 6 * 5);
}

TEST_F(CaptureSafety, OfWhatIsDoneWithTheGraphThatIsBeingCapturedInto) {
  cargo old = make_cargo();
  cargo taken = make_cargo();
  graph_exec exec(captured(old));
  test::capture open{one, cudaStreamCaptureModeGlobal};
  load(taken, one);
  cudaGraph_t const unfinished = open.info().graph;
  EXPECT_THROW(exec.update(unfinished), cuda_error);
  static_cast<void>(graph_exec(unfinished));
  hoisted held = hoist(unfinished);
  must(launch_add(one, cells.data(), 1));
  ASSERT_EQ(open.end(), cudaSuccess);
  exec.update(open.graph().get());
  EXPECT_TRUE(is_released(old));
  run(exec);
  EXPECT_TRUE(is_kept(taken));
  held.release();
  EXPECT_TRUE(is_released(taken));
}

#ifdef ESCROW_TEST_RUNTIME_SIM  // some calls use a graph that is destroyed

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

// How another thread ends a capture.
enum class ending { with_graph, with_graph_destroyed, invalidated, invalidated_and_begun_again };
constexpr ending endings[] = {ending::with_graph, ending::with_graph_destroyed, ending::invalidated,
                              ending::invalidated_and_begun_again};

class CaptureEndsMeanwhile : public world, public testing::WithParamInterface<ending> {
 protected:
  CaptureEndsMeanwhile() { errors_expected = true; }

  void begin() { must(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed)); }
  void end_elsewhere() {
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
    if (GetParam() == ending::invalidated_and_begun_again)
      must(cudaStreamEndCapture(one, made.out()));
    return result;
  }
  // What an operation in the capture may throw; whether it did not.
  [[nodiscard]] static bool succeeds(auto operation) {
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

  owned_graph made;
};

INSTANTIATE_TEST_SUITE_P(Ends, CaptureEndsMeanwhile, testing::ValuesIn(endings));

TEST_P(CaptureEndsMeanwhile, WhileTheFirstOrALaterOwnerIsRetired) {
  for (bool const is_later : {false, true}) {
    SCOPED_TRACE(is_later);
    cargo first = make_cargo();
    fate_ptr const fate = make_fate();
    begin();
    if (is_later) {
      load(first, one);
      block_worker();  // a set that is closed is still registered when the owner is appended
    }
    bool const is_taken = retire_while_it_ends(fate);
    may_end.store(is_later);
    if (is_later && GetParam() == ending::with_graph_destroyed) {
      EXPECT_FALSE(is_taken) << "the call says that the capture ended";
    }
    if (GetParam() == ending::with_graph) {
      EXPECT_TRUE(!is_later || is_kept(first.fate)) << "the graph is there";
      EXPECT_TRUE(!is_taken || is_kept(fate));
    }
    made.reset();
    EXPECT_TRUE(is_destroyed(fate));
    EXPECT_TRUE(!is_later || is_released(first));
    EXPECT_EQ(worker->stats().leaked, 0u);
  }
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

TEST_P(CaptureEndsInClaim, OfTheFirstOrALaterSlot) {
  for (std::size_t const slots : {1U, 3U}) {
    SCOPED_TRACE(slots);
    fate_ptr const fate = make_fate();
    block_pool pool = make_ending_pool(slots);
    begin();
    {
      std::vector<block_lease> claimed;
      if (slots != 1) retire(one, fate);
      while (claimed.size() != slots &&
             succeeds([&] { claimed.push_back(pool.claim(one.get())); })) {
      }
    }
    ASSERT_EQ(made_slots.exchange(0), slots);
    if (slots != 1 && GetParam() == ending::with_graph) {
      EXPECT_TRUE(is_kept(fate));
      EXPECT_GE(pool.stats().in_graphs, 2u);
    }
    made.reset();
    EXPECT_TRUE(slots == 1 || is_destroyed(fate));
    EXPECT_TRUE(can_claim(pool, slots));
    EXPECT_EQ(pool.stats().deferred, 0u);
    EXPECT_EQ(worker->stats().leaked, 0u);
  }
}

#endif

// CUDA destroys nothing in its callbacks.
class EndInACallback : public world {};

TEST_F(EndInACallback, OfAGraphAndItsExecIsMadeByTheWorker) {
  cargo taken = make_cargo();
  std::optional<graph> made(captured(taken));
  std::optional<graph_exec> exec(*made);
  run(*exec);
  std::atomic<bool> is_over{false};
  std::function<void()> end = [&] {
    exec.reset();
    made.reset();
    is_over.store(true);
  };
  must(cudaLaunchHostFunc(
      two, [](void* given) { (*static_cast<std::function<void()>*>(given))(); }, &end));
  EXPECT_TRUE(wait_until([&] { return is_over.load(); }));
  EXPECT_TRUE(is_released(taken));
  EXPECT_TRUE(deleter::global().drain_for(generous));
  EXPECT_TRUE(has_no_user_object());
}

}  // namespace
}  // namespace escrow::test
