// SPDX-License-Identifier: Apache-2.0
// Errors name the call that the user made, his line, the argument and what to do: also where one
// function of ours calls another, where a pool was moved from, and where CUDA's text says little.
#include <escrow/nodes.hpp>

#include "pool_world.hpp"

namespace escrow::test {
namespace {

class WhoseCall : public pool_world {};

TEST_F(WhoseCall, IsNamedWhereAPoolWasMovedFrom) {
  block_pool blocks = make_pool(1);
  block_pool const other_blocks = std::move(blocks);
  scratch_pool scratch(options(1));
  scratch_pool const other_scratch = std::move(scratch);
  std::vector<std::string> const moved{"the pool was moved from", "use the one"};
  std::vector<misuse> all;
  auto const add = [&](char const* call, std::function<void()> make) {
    all.push_back({call, moved, std::move(make)});
  };
  // NOLINTBEGIN(bugprone-use-after-move): that is tested
  add("resource_pool::claim: ", [&] { return blocks.claim(one); });
  add("resource_pool::claim_for_host: ", [&] { return blocks.claim_for_host(one); });
  add("resource_pool::claim_kept: ", [&] { return blocks.claim_kept(one); });
  add("resource_pool::try_claim: ", [&] { return blocks.try_claim(one); });
  add("resource_pool::try_claim_for: ",
      [&] { return blocks.try_claim_for(one, std::chrono::milliseconds(1)); });
  add("resource_pool::on: ", [&] { return blocks.on(one); });
  add("resource_pool::close_for: ", [&] { return blocks.close_for(std::chrono::milliseconds(1)); });
  add("resource_pool::holders: ", [&] { return blocks.holders(); });
  add("resource_pool::describe: ", [&] { return blocks.describe(); });
  add("scratch_pool::claim: ", [&] { return scratch.claim(one, 1); });
  add("scratch_pool::claim: ", [&] { return scratch.claim<int>(one, 1); });
  add("scratch_pool::claim_for_host: ", [&] { return scratch.claim_for_host(one, 1); });
  add("scratch_pool::claim_kept: ", [&] { return scratch.claim_kept(one, 1); });
  add("scratch_pool::on: ", [&] { return scratch.on(one); });
  add("scratch_pool::trim: ", [&] { return scratch.trim(); });
  add("scratch_pool::close_for: ", [&] { return scratch.close_for(std::chrono::milliseconds(1)); });
  add("scratch_pool::holders: ", [&] { return scratch.holders(); });
  add("scratch_pool::describe: ", [&] { return scratch.describe(); });
  expect_refused(all);
  EXPECT_EQ(blocks.stats().slots, 0U);
  EXPECT_EQ(blocks.device(), -1);
  EXPECT_EQ(scratch.stats().bytes, 0U);
  EXPECT_EQ(scratch.bytes(), 0U);
  // An allocator and a group are none of them: their move is a copy.
  sharing_group group;
  sharing_group const other_group = std::move(group);
  EXPECT_EQ(group.stats().slots, 0U);
  stream_allocator allocator(options(1));
  stream_allocator const other = std::move(allocator);
  allocator.deallocate(one, allocator.allocate(one, 1));
  // NOLINTEND(bugprone-use-after-move)
}

TEST_F(WhoseCall, IsTheCallersWhereOneOfOursMakesAnother) {
  scratch_pools each(options(1));
  expect_error<cuda_error>([&] { static_cast<void>(each.on(99)); },
                           {"tests/", "scratch_pools::on", "`device` is 99", "device"});
  pool_options elsewhere = options(1);
  elsewhere.device = 99;
  expect_error<cuda_error>([&] { return scratch_pool(elsewhere); },
                           {"tests/", "scratch_pool", "pool_options::device is 99", "device"});
  stream_allocator allocator(options(1));
  void* const memory = allocator.allocate(one, 1);
  expect_error<pool_exhausted>([&] { return allocator.allocate(one, 1); },
                               {"tests/", "stream_allocator::allocate: ", "all 1 slots"});
  expect_refused({
      {"stream_allocator::record_stream: ",
       {"legacy"},
       [&] {
         owned_stream const blocking = make_stream(cudaStreamDefault);
         test::capture const captured(blocking, cudaStreamCaptureModeThreadLocal);
         allocator.record_stream(cudaStreamLegacy, memory);
       }},
      {"device_block: ",
       {"`source` has no `allocate`", "memory_source::device()"},
       [&] { device_block(4, memory_source{}); }},
      {"device_block: ",
       {"no `free`"},
       [&] { device_block(4, memory_source{.allocate = cudaMalloc, .free = {}}); }},
  });
  memory_source const gives_null{.allocate = [](void**, std::size_t) { return cudaSuccess; },
                                 .free = cudaFree};
  expect_error<cuda_error>([&] { device_block(4, gives_null); },
                           {"cudaErrorMemoryAllocation", "returned success and a null address"});
  memory_source const throws{
      .allocate = [](void**, std::size_t) -> cudaError_t { throw std::domain_error("mine broke"); },
      .free = cudaFree};
  scratch_pool throwing(options(1), {.source = throws});
  EXPECT_THROW(static_cast<void>(throwing.claim(one, 4)), std::domain_error);
  memory_source const has_none{
      .allocate = [](void**, std::size_t) -> cudaError_t { throw std::bad_alloc(); },
      .free = cudaFree};
  expect_error<cuda_error>([&] { device_block(4, has_none); },
                           {"cudaErrorMemoryAllocation", "for 4 bytes"});
  expect_refused({{"memory_source::from: ", {"`pool` is null", "use device()"}, [] {
                     return memory_source::from(nullptr);
                   }}});
  allocator.deallocate(one, memory);
  test::capture const open{two, cudaStreamCaptureModeGlobal};
  invalidate(two);
  expect_refused({{"retain: ", {"invalidated"}, [&] { retain(two, std::make_unique<int>(1)); }}});
}

TEST_F(WhoseCall, IsNamedAtTheBeginAndEndOfACaptureWithWhatToDo) {
  expect_error<cuda_error>([&] { capture_scope(cudaStreamLegacy); },
                           {"tests/", "capture_scope::capture_scope", "cudaStreamBeginCapture",
                            "CUDA cannot capture the legacy stream"});
  {
    capture_scope scope(one);
    expect_error<cuda_error>([&] { capture_scope(stream_ref(one)); },
                             {"capture_scope::capture_scope", "is being captured already"});
    event const fork;
    fork.ref().record(one);
    fork.ref().wait(two);
    must(launch_tiny(two));
    expect_error<cuda_error>([&] { return scope.end(); },
                             {"tests/", "capture_scope::end", "cudaStreamEndCapture",
                              "make `stream` wait for that one"});
  }
  graph_exec exec(captured_without_cargo());
  stream_launcher launcher(std::move(exec), one);
  exec = launcher.release();
  expect_refused({{"stream_launcher::launch: ",
                   {"the launcher was released or moved from", "make another"},
                   [&] { launcher.launch(); }}});
}

TEST_F(WhoseCall, IsNamedWhereALeaseEndedInAnotherCaptureAndIsLeakedWithItsPool) {
  lost = 1;
  errors_expected = true;
  std::optional<block_pool> pool = make_pool(with(options(1), &pool_options::track_leases, true));
  int const line = __LINE__ + 1;
  std::optional<block_lease> held = pool->claim(one);
  {
    test::capture open(one, cudaStreamCaptureModeGlobal);
    held.reset();
    must(open.end());
  }
  pool.reset();
  EXPECT_NE(errors->all().find("whose_call_test.cpp:" + std::to_string(line) + ") is leaked"),
            std::string::npos)
      << errors->all();
}

TEST_F(WhoseCall, IsNamedWhereMakeClaimsFromItsOwnPool) {
  resource_pool<int>* self = nullptr;
  resource_pool<int> pool(options(4), [&] { return *self->claim(one.get()) + 1; });
  self = &pool;
  expect_error<usage_error>([&] { static_cast<void>(pool.claim(one.get())); },
                            {"resource_pool::claim", "whose_call_test.cpp",
                             "`make` of \"blocks\" claims from its own pool", "another pool"});
  EXPECT_EQ(pool.stats().slots, 0U);
}

}  // namespace
}  // namespace escrow::test
