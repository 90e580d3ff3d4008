// Graphs that are built by hand in ways that cannot be meant: the error names the call and what is
// wrong, and nothing was added or changed.
#include <escrow/deleter.hpp>
#include <optional>
#include <string>
#include <utility>

#include "build_fixture.hpp"

namespace escrow::test {
namespace {

class BuildMisuse : public build_test {
 protected:
  void TearDown() override { EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess); }

  memset_config const zero{.width = 1};
  cudaHostFn_t const nothing = [](void*) noexcept {};
};

TEST_F(BuildMisuse, AConditionOfAnotherGraphOrBodyIsRefused) {
  graph other;
  condition const of_other = build(other).make_condition(1);
  condition const ours = build(built_).make_condition(1);
  body_graph const body = build(built_).add(if_node(ours)).body();
  condition const of_body = body.make_condition(1);
  constexpr char const* problem = "the condition is of another graph, or of another body";
  struct wrong {
    graph_builder_ref at;
    condition looked_at;
  };
  for (wrong const& each : {wrong{built_, of_other}, wrong{built_, of_body}, wrong{body, ours},
                            wrong{body, of_other}, wrong{build(built_).join(), of_body}}) {
    graph_builder_ref const& at = each.at;
    condition const& looked_at = each.looked_at;
    expect_refused([&] { static_cast<void>(at.add(if_node(looked_at))); }, "if_node", problem);
    expect_refused([&] { static_cast<void>(at.add(if_else_node(looked_at))); }, "if_else_node",
                   problem);
    expect_refused([&] { static_cast<void>(at.add(while_node(looked_at))); }, "while_node",
                   problem);
    expect_refused([&] { static_cast<void>(at.add(switch_node(looked_at, 2))); }, "switch_node",
                   problem);
  }
  EXPECT_TRUE(nodes_in(body).empty());
  EXPECT_EQ(nodes_in(built_).size(), 2U);
}

TEST_F(BuildMisuse, AConditionWhoseGraphIsGoneIsRefused) {
  std::optional<graph> gone(std::in_place);
  condition const stale = build(*gone).make_condition(1);
  gone.reset();
  graph other;  // perhaps with the handle that the other had
  expect_refused([&] { static_cast<void>(build(other).add(if_node(stale))); }, "if_node",
                 "condition");
}

TEST_F(BuildMisuse, ASwitchWithoutBodiesIsRefused) {
  condition const ours = build(built_).make_condition(1);
  expect_refused([&] { static_cast<void>(build(built_).add(switch_node(ours, 0))); }, "switch_node",
                 "`bodies`");
  EXPECT_TRUE(nodes_in(built_).empty());
}

TEST_F(BuildMisuse, AMemsetThatCannotBeMeantIsRefused) {
  struct wrong {
    memset_config config;
    char const* problem;
  };
  node const made = build(built_).add(memset_node(device_.data(), zero));
  graph_exec exec(built_);
  for (wrong const& each : {
           wrong{{.value = 0x100, .width = 1}, "`value`"},
           wrong{{.value = 0x10000, .element_bytes = 2, .width = 1}, "`value`"},
           wrong{{.element_bytes = 0, .width = 1}, "`element_bytes`"},
           wrong{{.element_bytes = 3, .width = 1}, "`element_bytes`"},
           wrong{{.element_bytes = 8, .width = 1}, "`element_bytes`"},
           wrong{{.element_bytes = 4, .width = 2, .height = 2, .pitch = 7}, "`pitch`"},
           wrong{{.width = 2, .height = 2}, "`pitch`"},
           wrong{{.width = 0}, "width"},
           wrong{{.width = 1, .height = 0}, "rows"},
       }) {
    auto const& config = each.config;
    expect_refused([&] { build(built_).add(memset_node(device_.data(), config)); }, "memset_node",
                   each.problem);
    expect_refused([&] { made.set(memset_node(device_.data(), config)); }, "memset_node",
                   each.problem);
    expect_refused([&] { escrow::set(exec, made, memset_node(device_.data(), config)); },
                   "memset_node", each.problem);
  }
  int* const null = nullptr;
  expect_refused([&] { build(built_).add(memset_node(null, zero)); }, "memset_node", "destination");
  EXPECT_EQ(nodes_in(built_).size(), 1U);
  EXPECT_EQ(memset_params_of(made).width, 1U);
}

TEST_F(BuildMisuse, AMemsetThatIsJustInRangeIsNot) {
  build(built_).add(memset_node(device_.data(), {.value = 0xff, .width = 1}));
  build(built_).add(
      memset_node(device_.data() + 1, {.value = 0xffff, .element_bytes = 2, .width = 1}));
  build(built_).add(
      memset_node(device_.data() + 2, {.value = 0xffffffff, .element_bytes = 4, .width = 1}));
  build(built_).add(
      memset_node(device_.data() + 3, {.value = 0xff, .width = 4, .height = 2, .pitch = 4}));
  run(built_);
  EXPECT_EQ(device_.read(), (std::vector<int>{0xff, 0xffff, -1, -1, -1, 0, 0, 0}));
}

TEST_F(BuildMisuse, AMemcpyOfNothingOrOfNowhereIsRefused) {
  node const made = build(built_).add(memcpy_node(cells_.data(), device_.data(), 4));
  graph_exec exec(built_);
  int* const null = nullptr;
  int* const data = device_.data();
  constexpr char const* call = "memcpy_node";
  expect_refused([&] { build(built_).add(memcpy_node(data, data + 1, 0)); }, call, "`bytes`");
  expect_refused([&] { build(built_).add(memcpy_node(null, data, 4)); }, call, "address");
  expect_refused([&] { build(built_).add(memcpy_node(data, null, 4)); }, call, "address");
  expect_refused([&] { made.set(memcpy_node(data, null, 4)); }, call, "address");
  expect_refused([&] { escrow::set(exec, made, memcpy_node(data, data + 1, 0)); }, call, "`bytes`");
  EXPECT_EQ(nodes_in(built_).size(), 1U);
}

TEST_F(BuildMisuse, MemoryOfNoBytesAndTheFreeingOfNullAreRefused) {
  expect_refused([&] { static_cast<void>(build(built_).add(alloc_node(0))); }, "alloc_node",
                 "`bytes`");
  expect_refused([&] { build(built_).add(free_node(nullptr)); }, "free_node", "`address`");
  EXPECT_TRUE(nodes_in(built_).empty());
}

TEST_F(BuildMisuse, DestroyingAConditionalNodeIsRefused) {
  condition const always = build(built_).make_condition(1);
  conditional_node const made = build(built_).add(if_node(always));
  expect_refused([&] { made.destroy(); }, "node::destroy", "conditional");
  add_to(made.body(), 0, 1);
  run(built_);
  EXPECT_EQ(cells_.load(), 1);
}

TEST_F(BuildMisuse, AKernelThatWasMovedFromIsRefused) {
  node const made = add_to(built_, 0, 1);
  graph_exec exec(built_);
  kernel from(add);
  kernel const taken = std::move(from);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  expect_refused([&] { build(built_).add(kernel_node(from, {})); }, "kernel_node",
                 "the kernel is null");
  expect_refused([&] { made.set(kernel_node(from, {})); }, "kernel_node", "the kernel is null");
  expect_refused([&] { escrow::set(exec, made, kernel_node(from, {})); }, "kernel_node",
                 "the kernel is null");
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(kernel_params_of(made).func, taken.get());
  EXPECT_EQ(nodes_in(built_).size(), 1U);
}

TEST_F(BuildMisuse, MoreSharedMemoryThanCudaCanBeToldOfIsRefused) {
  launch_config config;
  config.shared_bytes = std::size_t{1} << 32;
  expect_refused([&] { build(built_).add(kernel_node(add, config, cells_.data(), 1)); },
                 "kernel_node", "`shared_bytes`");
}

TEST_F(BuildMisuse, ALaunchWithAttributesOrADeleterIsRefused) {
  node const made = add_to(built_, 0, 1);
  graph_exec exec(built_);
  launch_config with_attributes;
  with_attributes.attributes.resize(1);
  deleter its;
  launch_config with_deleter;
  with_deleter.deleter = &its;
  for (auto const& [config, text] :
       {std::pair(with_attributes, "attributes"), std::pair(with_deleter, "deleter")}) {
    auto const& given = config;
    char const* const problem = text;
    int* const cell = cells_.data();
    expect_refused([&] { build(built_).add(kernel_node(add, given, cell, 1)); }, "kernel_node",
                   problem);
    expect_refused([&] { made.set(kernel_node(add, given, cell, 1)); }, "kernel_node", problem);
    expect_refused([&] { escrow::set(exec, made, kernel_node(add, given, cell, 1)); },
                   "kernel_node", problem);
  }
  EXPECT_EQ(nodes_in(built_).size(), 1U);
}

TEST_F(BuildMisuse, ASharedEventThatWasMovedFromIsRefused) {
  shared_event from = shared_event::make();
  shared_event const taken = std::move(from);
  node const recorded = build(built_).add(record_node(taken));
  node const waited = build(built_).add(wait_node(taken));
  graph_exec exec(built_);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  EXPECT_EQ(from.get(), nullptr);
  expect_refused([&] { build(built_).add(record_node(from)); }, "record_node", "the event is null");
  expect_refused([&] { build(built_).add(wait_node(from)); }, "wait_node", "the event is null");
  expect_refused([&] { recorded.set(record_node(from)); }, "record_node", "the event is null");
  expect_refused([&] { waited.set(wait_node(from)); }, "wait_node", "the event is null");
  expect_refused([&] { escrow::set(exec, waited, wait_node(from)); }, "wait_node",
                 "the event is null");
  // NOLINTEND(bugprone-use-after-move)
  expect_refused([&] { build(built_).add(record_node(event_ref(cudaEvent_t{}))); }, "record_node",
                 "null");
  EXPECT_EQ(nodes_in(built_).size(), 2U);
}

TEST_F(BuildMisuse, ANullFunctionAndMissingDataAreRefused) {
  node const made = build(built_).add(host_node(nothing, nullptr, 0));
  graph_exec exec(built_);
  int const data = 1;
  constexpr char const* call = "host_node";
  expect_refused([&] { build(built_).add(host_node(nullptr, &data, 4)); }, call,
                 "the function is null");
  expect_refused([&] { made.set(host_node(nullptr, &data, 4)); }, call, "the function is null");
  expect_refused([&] { escrow::set(exec, made, host_node(nullptr, &data, 4)); }, call,
                 "the function is null");
  expect_refused([&] { build(built_).add(host_node(nothing, nullptr, 4)); }, call, "`data`");
  expect_refused([&] { made.set(host_node(nothing, nullptr, 4)); }, call, "`data`");
  EXPECT_EQ(host_params_of(made).fn, nothing);
  EXPECT_EQ(nodes_in(built_).size(), 1U);
}

}  // namespace
}  // namespace escrow::test
