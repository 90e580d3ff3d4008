// SPDX-License-Identifier: Apache-2.0
// What a caller passes that cannot be meant: no function, a negative number, a stream of another
// thread.
#include <escrow/graph.hpp>
#include <functional>
#include <thread>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class CallersFunction : public sharing_world {};

TEST_F(CallersFunction, ThatIsNullIsRefusedByName) {
  void (*const none)() = nullptr;
  std::function<void(stream_ref)> const empty;
  char const* const what = "the function is null";
  expect_error<usage_error>([&] { return escrow::capture(one, none); }, {"capture: ", what});
  expect_error<usage_error>([&] { return escrow::capture(one, empty); }, {"capture: ", what});
  expect_error<usage_error>([&] { group.run(one, none); }, {"sharing_group::run: ", what});
  graph const source = captured_use_of(*pool);
  hoisted held = hoist(source);
  expect_error<usage_error>([&] { held.launch(one, none); }, {"hoisted::launch: ", what});
  held.release();
  EXPECT_TRUE(capture_of(one).is_none());
}

TEST_F(CallersFunction, RunsNotAsOftenAsANegativeNumberOf32Bits) {
  graph_exec exec(captured_use_of(*pool));
  std::uint32_t const done = 5;
  std::uint32_t const wanted = 3;
  expect_error<usage_error>([&] { exec.launch_many(one, wanted - done); },
                            {"`times` is 4294967294", "negative number"});
}

TEST_F(CallersFunction, EndsItsHoistedGraphOnTheThreadOfTheStream) {
  errors_expected = true;
  graph const source = captured_use_of(*pool);
  auto held = std::make_unique<hoisted>(hoist(source));
  held->release_at_end(cudaStreamPerThread);
  std::thread([&] { held.reset(); }).join();
  lost = 1;
  owed = 1;
  EXPECT_NE(errors->all().find("on another thread than the one whose cudaStreamPerThread"),
            std::string::npos)
      << errors->all();
}

TEST_F(CallersFunction, LaunchesWhatNothingOrdersAsLongAsThePlainExecLives) {
  std::uint64_t id = 0;
  owned_exec exec;
  {
    graph const source = captured_use_of(*pool);
    id = source.id();
    exec = instantiate(source.get());
  }
  EXPECT_EQ(group.stats().unordered, std::vector{id});
  exec.reset();
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(drained());
  EXPECT_TRUE(group.stats().unordered.empty());
}

}  // namespace
}  // namespace escrow::test
