// SPDX-License-Identifier: Apache-2.0
// Audits find each planted address that its graph does not keep, name it, and find nothing in
// graphs that keep what they use.
#include <escrow/nodes.hpp>

#include "audit_world.hpp"
#include "graph_nodes.hpp"

namespace escrow::test {
namespace {

using finding = audit_finding;
using problem = address_problem;

class Audit : public audit_world {
 protected:
  /// One finding of the kernel add.
  static void expect_only(std::vector<finding> const& found, problem what, int const* address) {
    ASSERT_EQ(found.size(), 1U) << describe(found);
    EXPECT_EQ(found.front().what, what) << describe(found);
    EXPECT_EQ(found.front().address, address);
    EXPECT_NE(found.front().kernel.find("add_kernel"), std::string::npos) << found.front().kernel;
    EXPECT_EQ(found.front().argument, 0U);
    EXPECT_EQ(found.front().offset, 0U);
    EXPECT_NE(found.front().node, nullptr);
  }
  static void function_of_struct(cudaStream_t on, pointer_pair const& pair) {
    launch(on, function_of<pointer_pair>(kernel_id::struct_of_pointers), {}, pair);
  }

  scratch_pool scratch{options(16)};
};

TEST_F(Audit, FindsALeaseOfBeforeTheCaptureThatIsUsedByItsAddress) {
  auto early = scratch.claim<int>(one, values);
  int* const address = early.data();
  graph const uses = captured_use(address);
  std::vector<finding> const leased = audit(uses);
  expect_only(leased, problem::not_held, address);
  EXPECT_NE(leased.front().text.find("a lease has"), std::string::npos) << leased.front().text;
  EXPECT_NE(leased.front().owner.find("blocks"), std::string::npos) << leased.front().owner;
  EXPECT_EQ(leased.front().graph, uses.get());

  early.release(one);
  std::vector<finding> const idle = audit(uses);
  expect_only(idle, problem::not_held, address);
  EXPECT_NE(idle.front().text.find("it is free"), std::string::npos) << idle.front().text;
}

/// With memory of its own, as pools are made of.
struct has_buffer {
  device_buffer<int> buffer{64};
  int* others = nullptr;
};

#ifdef ESCROW_TEST_RUNTIME_SIM
TEST_F(Audit, RefusesAnEmptyGraphIfTheWorkWentToAnotherStream) {
  auto const on_another = [&](stream_ref) { must(launch_add(two, cells.data(), 1)); };
  expect_error<usage_error>([&] { return escrow::capture(one, on_another); },
                            {"capture: nothing was captured", "on another stream",
                             "enqueue it on the stream that is captured"});
  static_cast<void>(escrow::capture(one, on_another,
                                    capture_options(  //
                                        cudaStreamCaptureModeThreadLocal, audit_use::no)));
  static_cast<void>(escrow::capture(one, [] {}));
  auto const on_both = [&](stream_ref on) {
    on_another(on);
    must(launch_add(on.get(), cells.data(), 1));
  };
  static_cast<void>(escrow::capture(one, on_both));
  capture_options const strict(cudaStreamCaptureModeThreadLocal, audit_use::yes);
  expect_error<usage_error>([&] { return escrow::capture(one, on_both, strict); },
                            {"capture: not all was captured", "on another stream"});
  sync(two);
}
#endif

TEST_F(Audit, FindsMemoryThatThePooledObjectHas) {
  device_buffer<int> const shared(64);
  resource_pool<has_buffer> pool(options(4), [&] {
    has_buffer made;
    made.others = shared.data();
    return made;
  });
  auto early = pool.claim(one.get());
  graph const uses = captured_use(early->buffer.data());
  expect_only(audit(uses), problem::not_held, early->buffer.data());
  expect_healthy(captured_use(early->others));
  expect_healthy(captured([&](cudaStream_t on) {
    must(launch_add(on, early->buffer.data(), 1));
    early.record_stream(on);
  }));
  has_buffer const taken{.buffer = std::move(early->buffer)};
  early.release();
}

TEST_F(Audit, FindsNothingIfTheGraphKeepsTheLeaseOrAnOwnerMayHaveIt) {
  auto launched = scratch.claim<int>(one, values);
  auto retained = scratch.claim<int>(one, values);
  auto const owned = std::make_shared<lease<device_block>>(scratch.claim(one, 4096));
  sync(one);
  expect_healthy(captured([&](cudaStream_t on) {
    launch(on, function_of<int*, int>(kernel_id::add), {}, launched, 1);
  }));
  expect_healthy(captured([&](cudaStream_t on) {
    must(launch_add(on, retained.data(), 1));
    worker->retire(on, std::move(retained));
  }));
  expect_healthy(captured([&](cudaStream_t on) {
    must(launch_add(on, data_of(*owned), 1));
    worker->retire(on, owned);
  }));
}

TEST_F(Audit, FindsNothingIfANodeHasAShare) {
  auto shared = scratch.claim<int>(one, values);
  graph by_hand;
  build(by_hand).add(kernel_node(function_of<int*, int>(kernel_id::add), {}, shared, 1));
  expect_healthy(by_hand);
  shared.release(one);
  expect_healthy(by_hand);
}

TEST_F(Audit, FindsNothingInGraphsThatClaimWhatTheyUse) {
  device_ints const plain(values);
  device_buffer<int> const living(values);
  stream_allocator allocator(options(8));
  auto* const allocated = static_cast<int*>(allocator.allocate(one, 4096));
  auto const work = [&](cudaStream_t on) {
    use_scratch(scratch, on, 1);
    use_scratch(scratch, on, 2, mebibyte);
    must(launch_add(on, plain.data(), 1));
    must(launch_add(on, living.data(), 1));
    must(launch_add(on, allocated, 1));
    must(launch_add(on, cells.data(), 1));
    auto held = scratch.claim<int>(on, values);
    function_of_struct(on, {held.data(), 7, held.data() + 1});
    must(cudaMemsetAsync(held.data(), 0, 64, on));
    must(cudaMemcpyAsync(held.data(), cells.data(), 16, cudaMemcpyDefault, on));
  };
  {
    graph const source = captured(work);
    expect_healthy(source);
    expect_healthy(source.get());
    expect_healthy(source.clone());
    graph parent = captured(work);
    parent.add_child(source);
    parent.add_child(source);
    expect_healthy(parent);
    expect_healthy(parent.clone());
    owned_graph const plain_copy = test::clone(source.get());
    expect_healthy(plain_copy.get());
    owned_graph const plainly = captured_plainly(work);
    expect_healthy(plainly.get());
    graph_exec const exec(source);
    expect_healthy(source);
    hoisted held = hoist(parent);
    expect_healthy(parent);
    held.release();
  }
  allocator.deallocate(one, allocated);
  sync_all();
}

TEST_F(Audit, FindsWhatAnotherGraphHasClaimed) {
  int* address = nullptr;
  graph const holds =
      captured([&](cudaStream_t on) { address = static_cast<int*>(use_scratch(scratch, on, 1)); });
  expect_only(audit(captured_use(address)), problem::of_another_graph, address);
  expect_healthy(holds);
}

TEST_F(Audit, FindsNothingWhereALeaseOfAnotherCaptureLives) {
  std::optional<buffer_lease<int>> output;
  graph const writes = captured([&](cudaStream_t on) {
    output.emplace(scratch.claim<int>(on, values));
    must(launch_add(on, output->data(), 1));
  });
  expect_healthy(captured_use(output->data()));
  output.reset();
}

TEST_F(Audit, FindsRangesOfAnArenaThatTheGraphHasNot) {
  scratch_pool pool(in_group());
  int* far = nullptr;
  graph const large = captured([&](cudaStream_t on) {
    auto const near = pool.claim(on, mebibyte);
    far = static_cast<int*>(use_scratch(pool, on, 1, mebibyte));
  });
  int* near = nullptr;
  graph const small = captured(
      [&](cudaStream_t on) { near = static_cast<int*>(use_scratch(pool, on, 1, mebibyte)); });
  expect_healthy(large);
  expect_healthy(small);
  graph const uses = captured([&](cudaStream_t on) {
    auto const held = pool.claim(on, mebibyte);
    must(launch_add(on, near, 1));
    must(launch_add(on, far, 1));
  });
  std::vector<finding> const found = audit(uses);
  ASSERT_EQ(found.size(), 1U) << describe(found);
  expect_only(found, problem::of_another_graph, far);
  EXPECT_NE(found.front().text.find("claimed at"), std::string::npos) << found.front().text;
  // Behind all that is mapped.
  int* const behind = near + (std::size_t{1} << 30) / sizeof(int);
  expect_only(audit(captured_use(behind)), problem::freed, behind);
}

TEST_F(Audit, FindsMemoryThatIsFreed) {
  std::optional<device_buffer<int>> buffer(std::in_place, values);
  std::optional<scratch_pool> pool(std::in_place, options(2),
                                   scratch_policy{.source = memory_source::cuda_malloc()});
  auto released = pool->claim<int>(one, values);
  int* const of_pool = released.data();
  released.release();
  int* const of_buffer = buffer->data();
  graph const uses = captured_use(of_buffer);
  graph const uses_pool = captured_use(of_pool);
  graph const in_struct = captured([&](cudaStream_t on) {
    function_of_struct(on, {nullptr, 7, of_buffer});
  });
  expect_healthy(uses);
  buffer.reset();
  expect_only(audit(uses), problem::freed, of_buffer);
  std::vector<finding> const found = audit(in_struct);
  ASSERT_EQ(found.size(), 1U) << describe(found);
  EXPECT_EQ(found.front().what, problem::only_looks_like);
  EXPECT_EQ(found.front().offset, offsetof(pointer_pair, second));
  sync(one);
  end(*pool);
  expect_only(audit(uses_pool), problem::freed, of_pool);
  pool.reset();
}

TEST_F(Audit, FindsAddressesInStructsCopiesAndFills) {
  auto const early = scratch.claim<int>(one, values);
  auto const other = scratch.claim<int>(one, values);
  std::vector<finding> found = audit(captured([&](cudaStream_t on) {
    function_of_struct(on, {early.data(), 7, other.data() + 3});
    must(cudaMemsetAsync(early.data(), 0, 64, on));
    must(cudaMemcpyAsync(early.data() + 1, cells.data(), 16, cudaMemcpyDefault, on));
    must(cudaMemcpyAsync(cells.data(), early.data() + 2, 16, cudaMemcpyDefault, on));
  }));
  ASSERT_EQ(found.size(), 5U) << describe(found);
  EXPECT_EQ(found[0].offset, 0U);
  EXPECT_EQ(found[1].offset, offsetof(pointer_pair, second));
  EXPECT_EQ(found[1].address, other.data() + 3);
  EXPECT_EQ(found[2].type, cudaGraphNodeTypeMemset);
  EXPECT_EQ(found[3].type, cudaGraphNodeTypeMemcpy);
  EXPECT_EQ(found[3].argument, 0U);
  EXPECT_EQ(found[4].argument, 1U);
  for (finding const& each : found) EXPECT_EQ(each.what, problem::not_held) << each.text;
  for (char const* const part :
       {"struct_kernel", "offset 16", "fill", "copy, destination", "copy, source", "blocks"}) {
    EXPECT_NE(describe(found).find(part), std::string::npos) << part << "\n" << describe(found);
  }
}

TEST_F(Audit, LooksIntoChildGraphsAndBodies) {
  auto const early = scratch.claim<int>(one, values);
  graph parent;
  parent.add_child(captured_use(early.data()));
  std::vector<finding> const in_child = audit(parent);
  expect_only(in_child, problem::not_held, early.data());
  EXPECT_NE(in_child.front().graph, parent.get());

  graph whole;
  auto const bodies =
      add_conditional_node(whole.get(), make_condition(whole.get(), 1), cudaGraphCondTypeIf).bodies;
  capture_into(bodies.front(), [&](cudaStream_t on) { must(launch_add(on, early.data(), 1)); });
  EXPECT_TRUE(audit(whole).empty());  // CUDA does not tell them
  std::vector<finding> const in_body = audit(whole, bodies);
  expect_only(in_body, problem::not_held, early.data());
  EXPECT_EQ(in_body.front().graph, bodies.front());

  graph by_hand;
  auto const condition = build(by_hand).make_condition(1);
  auto const made = build(by_hand).add(if_node(condition));
  auto shared = scratch.claim<int>(one, values);
  made.body().add(kernel_node(function_of<int*, int>(kernel_id::add), {}, shared, 1));
  expect_healthy(by_hand);
  made.body().add(kernel_node(function_of<int*, int>(kernel_id::add), {}, early.data(), 1));
  EXPECT_TRUE(audit(by_hand).empty()) << "an owner in the graph might have the lease";
}

TEST_F(Audit, IsAnOptionOfCapturesAndExecs) {
  auto const early = scratch.claim<int>(one, values);
  auto const use = [&](stream_ref on) { must(launch_add(on.get(), early.data(), 1)); };
  auto const options = [](audit_use audited) {
    return capture_options(cudaStreamCaptureModeThreadLocal, audited);
  };
  graph const uses = escrow::capture(stream_ref(one.get()), use, options(audit_use::no));
  auto const refused = [&](audit_use audited) {
    expect_error<usage_error>(
        [&] { return escrow::capture(stream_ref(one.get()), use, options(audited)); },
        {"audit_test.cpp", "capture: ", "add_kernel", "a lease has"});
  };
  refused(audit_use::yes);
  if (is_simulated()) refused(audit_use::by_default);
  expect_error<usage_error>(
      [&] { return graph_exec(uses, instantiate_options{.audit = audit_use::yes}); },
      {"audit_test.cpp", "graph_exec::graph_exec", "add_kernel", "a lease has"});
  graph_exec const exec(uses);
  std::optional<device_buffer<int>> buffer(std::in_place, values);
  int* const freed = buffer->data();
  buffer.reset();
  auto const use_freed = [&](stream_ref on) { must(launch_add(on.get(), freed, 1)); };
  expect_error<usage_error>(
      [&] { return escrow::capture(stream_ref(one.get()), use_freed, options(audit_use::yes)); },
      {"is freed"});
}

TEST_F(Audit, OfAParkedGroupIsRefused) {
  scratch_pool pool(in_group());
  graph_exec exec(captured([&](cudaStream_t on) { use_scratch(pool, on, 1); }));
  graph const source = captured([&](cudaStream_t on) { use_scratch(pool, on, 1); });
  group->park();
  expect_error<usage_error>([&] { return audit(source); }, {"audit", "is parked"});
  group->unpark();
  expect_healthy(source);
}

TEST_F(Audit, ChangesNothingOfTheCallers) {
  auto const early = scratch.claim<int>(one, values);
  graph const uses = captured_use(early.data());
  expect_error<usage_error>([] { return audit(cudaGraph_t{}); }, {"audit", "null"});
  int before = -1;
  must(cudaGetDevice(&before));
  {
    test::capture open{two, cudaStreamCaptureModeGlobal};
    must(launch_tiny(two));
    EXPECT_EQ(audit(uses).size(), 1U);
    must(open.end());
  }
  ASSERT_EQ(cudaMalloc(nullptr, 1), cudaErrorInvalidValue);
  EXPECT_EQ(audit(uses).size(), 1U);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  int after = -1;
  must(cudaGetDevice(&after));
  EXPECT_EQ(after, before);
}

TEST_F(Audit, OfAGraphWhoseHoistedIsReleasedRefusesExecs) {
  auto const claim = [&](cudaStream_t on) {
    auto const block = scratch.claim<int>(on, values);
    must(launch_add(on, block.data(), 1));
  };
  graph const source = captured(claim);
  graph_exec other(captured([](cudaStream_t on) { must(launch_tiny(on)); }));
  hoisted held = hoist(source);
  graph const copy = source.clone();
  { graph_exec const meanwhile(source); }  // NOLINT(bugprone-unused-raii): it must be allowed
  held.release();
  for (graph const* const each : {&source, &copy}) {
    expect_error<usage_error>([&] { graph_exec const late(*each); },
                              {"graph_exec::graph_exec: the `hoisted` of ", "audit_test.cpp",
                               " has released what the graph uses: kernel", "argument 0: 0x",
                               "before that, or capture again"});
  }
  expect_error<usage_error>([&] { static_cast<void>(other.update(source)); },
                            {"graph_exec::update: the `hoisted`"});
  graph parent;
  parent.add_child(source);
  expect_error<usage_error>([&] { graph_exec const late(parent); }, {"has released"});
}

TEST_F(Audit, FindsNothingInAPooledObjectThatOwnsALease) {
  struct workspace {
    buffer_lease<int> sums;
  };
  resource_pool<workspace> workspaces(options(1),
                                      [&] { return workspace{scratch.claim<int>(one, values)}; });
  workspaces.claim(one).release(one);  // makes it, before the capture
  graph const uses = captured([&](cudaStream_t on) {
    auto const claimed = workspaces.claim(on);
    must(launch_add(on, claimed->sums.data(), 1));
  });
  expect_healthy(uses);
}

TEST_F(Audit, OfAHoistedGraphWithoutSuchMemoryRefusesNothing) {
  graph const source = captured([&](cudaStream_t on) {
    auto const block = scratch.claim<int>(on, values);
    must(launch_tiny(on));
  });
  hoist(source).release();
  EXPECT_NO_THROW(graph_exec(source).launch(one));
}

}  // namespace
}  // namespace escrow::test
