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
  condition const of_other = other.make_condition(1);
  condition const ours = built_.make_condition(1);
  body_graph const body = built_.if_then(ours).body();
  condition const of_body = body.make_condition(1);
  constexpr char const* problem = "the condition is of another graph, or of another body";
  struct wrong {
    insertion_point at;
    condition looked_at;
  };
  for (wrong const& each : {wrong{built_, of_other}, wrong{built_, of_body}, wrong{body, ours},
                            wrong{body, of_other}, wrong{built_.join(), of_body}}) {
    insertion_point const& at = each.at;
    condition const& looked_at = each.looked_at;
    expect_refused([&] { static_cast<void>(at.if_then(looked_at)); }, "node::if_then", problem);
    expect_refused([&] { static_cast<void>(at.if_else(looked_at)); }, "node::if_else", problem);
    expect_refused([&] { static_cast<void>(at.while_loop(looked_at)); }, "node::while_loop",
                   problem);
    expect_refused([&] { static_cast<void>(at.switch_to(looked_at, 2)); }, "node::switch_to",
                   problem);
  }
  EXPECT_TRUE(body.nodes().empty());
  EXPECT_EQ(built_.nodes().size(), 2U);
}

TEST_F(BuildMisuse, AConditionWhoseGraphIsGoneIsRefused) {
  std::optional<graph> gone(std::in_place);
  condition const stale = gone->make_condition(1);
  gone.reset();
  graph other;  // perhaps with the handle that the other had
  expect_refused([&] { static_cast<void>(other.if_then(stale)); }, "node::if_then", "condition");
}

TEST_F(BuildMisuse, ASwitchWithoutBodiesIsRefused) {
  condition const ours = built_.make_condition(1);
  expect_refused([&] { static_cast<void>(built_.switch_to(ours, 0)); }, "node::switch_to",
                 "`bodies`");
  EXPECT_TRUE(built_.nodes().empty());
}

TEST_F(BuildMisuse, AMemsetThatCannotBeMeantIsRefused) {
  struct wrong {
    memset_config config;
    char const* problem;
  };
  node const made = built_.memset(device_.data(), zero);
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
    expect_refused([&] { built_.memset(device_.data(), config); }, "node::memset", each.problem);
    expect_refused([&] { made.set_memset(device_.data(), config); }, "node::memset", each.problem);
    expect_refused([&] { exec.set_memset(made, device_.data(), config); }, "node::memset",
                   each.problem);
  }
  int* const null = nullptr;
  expect_refused([&] { built_.memset(null, zero); }, "node::memset", "destination");
  EXPECT_EQ(built_.nodes().size(), 1U);
  EXPECT_EQ(made.memset_parameters().width, 1U);
}

TEST_F(BuildMisuse, AMemsetThatIsJustInRangeIsNot) {
  built_.memset(device_.data(), {.value = 0xff, .width = 1});
  built_.memset(device_.data() + 1, {.value = 0xffff, .element_bytes = 2, .width = 1});
  built_.memset(device_.data() + 2, {.value = 0xffffffff, .element_bytes = 4, .width = 1});
  built_.memset(device_.data() + 3, {.value = 0xff, .width = 4, .height = 2, .pitch = 4});
  run(built_);
  EXPECT_EQ(device_.read(), (std::vector<int>{0xff, 0xffff, -1, -1, -1, 0, 0, 0}));
}

TEST_F(BuildMisuse, AMemcpyOfNothingOrOfNowhereIsRefused) {
  node const made = built_.memcpy(cells_.data(), device_.data(), 4);
  graph_exec exec(built_);
  int* const null = nullptr;
  int* const data = device_.data();
  constexpr char const* call = "node::memcpy";
  expect_refused([&] { built_.memcpy(data, data + 1, 0); }, call, "`bytes`");
  expect_refused([&] { built_.memcpy(null, data, 4); }, call, "address");
  expect_refused([&] { built_.memcpy(data, null, 4); }, call, "address");
  expect_refused([&] { made.set_memcpy(data, null, 4); }, call, "address");
  expect_refused([&] { exec.set_memcpy(made, data, data + 1, 0); }, call, "`bytes`");
  EXPECT_EQ(built_.nodes().size(), 1U);
}

TEST_F(BuildMisuse, MemoryOfNoBytesAndTheFreeingOfNullAreRefused) {
  expect_refused([&] { static_cast<void>(built_.alloc(0)); }, "node::alloc", "`bytes`");
  expect_refused([&] { built_.free(nullptr); }, "node::free", "`address`");
  EXPECT_TRUE(built_.nodes().empty());
}

TEST_F(BuildMisuse, DestroyingAConditionalNodeIsRefused) {
  condition const always = built_.make_condition(1);
  conditional_node const made = built_.if_then(always);
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
  expect_refused([&] { built_.launch(from, {}); }, "node::launch", "the kernel is null");
  expect_refused([&] { made.set_launch(from, {}); }, "node::launch", "the kernel is null");
  expect_refused([&] { exec.set_launch(made, from, {}); }, "node::launch", "the kernel is null");
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(made.launch_parameters().launched, taken);
  EXPECT_EQ(built_.nodes().size(), 1U);
}

TEST_F(BuildMisuse, MoreSharedMemoryThanCudaCanBeToldOfIsRefused) {
  launch_config config;
  config.shared_bytes = std::size_t{1} << 32;
  expect_refused([&] { built_.launch(add, config, cells_.data(), 1); }, "node::launch",
                 "`shared_bytes`");
}

TEST_F(BuildMisuse, ALaunchWithAttributesOrAKeeperIsRefused) {
  node const made = add_to(built_, 0, 1);
  graph_exec exec(built_);
  launch_config with_attributes;
  with_attributes.attributes.resize(1);
  deleter its;
  launch_config with_keeper;
  with_keeper.keeper = &its;
  for (auto const& [config, text] :
       {std::pair(with_attributes, "attributes"), std::pair(with_keeper, "keeper")}) {
    auto const& given = config;
    char const* const problem = text;
    int* const cell = cells_.data();
    expect_refused([&] { built_.launch(add, given, cell, 1); }, "node::launch", problem);
    expect_refused([&] { made.set_launch(add, given, cell, 1); }, "node::launch", problem);
    expect_refused([&] { exec.set_launch(made, add, given, cell, 1); }, "node::launch", problem);
  }
  EXPECT_EQ(built_.nodes().size(), 1U);
}

TEST_F(BuildMisuse, ASharedEventThatWasMovedFromIsRefused) {
  shared_event from = shared_event::make();
  shared_event const taken = std::move(from);
  node const recorded = built_.record(taken);
  node const waited = built_.wait(taken);
  graph_exec exec(built_);
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  EXPECT_EQ(from.get(), nullptr);
  expect_refused([&] { built_.record(from); }, "node::record", "the event is null");
  expect_refused([&] { built_.wait(from); }, "node::wait", "the event is null");
  expect_refused([&] { recorded.set_event(from); }, "node::record", "the event is null");
  expect_refused([&] { waited.set_event(from); }, "node::wait", "the event is null");
  expect_refused([&] { exec.set_event(waited, from); }, "node::wait", "the event is null");
  // NOLINTEND(bugprone-use-after-move)
  expect_refused([&] { built_.record(event_ref(cudaEvent_t{})); }, "node::record", "null");
  EXPECT_EQ(built_.nodes().size(), 2U);
}

TEST_F(BuildMisuse, ANullFunctionAndMissingDataAreRefused) {
  node const made = built_.call(nothing, nullptr, 0);
  graph_exec exec(built_);
  int const data = 1;
  constexpr char const* call = "node::call";
  expect_refused([&] { built_.call(nullptr, &data, 4); }, call, "the function is null");
  expect_refused([&] { made.set_call(nullptr, &data, 4); }, call, "the function is null");
  expect_refused([&] { exec.set_call(made, nullptr, &data, 4); }, call, "the function is null");
  expect_refused([&] { built_.call(nothing, nullptr, 4); }, call, "`data`");
  expect_refused([&] { made.set_call(nothing, nullptr, 4); }, call, "`data`");
  EXPECT_EQ(made.call_parameters().fn, nothing);
  EXPECT_EQ(built_.nodes().size(), 1U);
}

}  // namespace
}  // namespace escrow::test
