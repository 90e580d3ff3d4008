// SPDX-License-Identifier: Apache-2.0
// Errors that no caller can be told: standard error hears of the first ones, unless the program
// has a handler; and no handler is called once the process ends.
#include <escrow/nodes.hpp>
#include <stdexcept>

#include "belongings.hpp"

namespace escrow::test {
namespace {

/// Makes an error of a destructor: nothing releases what was hoisted.
void forget_to_release(block_pool& pool, cudaStream_t stream) {
  static_cast<void>(hoist(escrow::capture(
      stream_ref(stream), [&](stream_ref on) { static_cast<void>(pool.claim(on)); })));
}

void forget(int times) {
  owned_stream const stream = make_stream();
  tally counts;
  auto const made = [&counts] { return block{counts}; };
  block_pool pool({.slots_max = 32, .label = "blocks"}, made);
  for (int i = 0; i < times; ++i) forget_to_release(pool, stream);
}

void forget_with_a_handler() {
  static std::atomic<int> told{0};
  deleter::global().set_on_error([](std::exception const&) { ++told; });
  forget(12);
  must(told == 12, "the handler is told of each");
}

/// What a handler writes to. As ordinary programs have it: made by its first use.
struct logger {
  ~logger() { is_there = false; }
  void log(char const* text) const {
    if (!is_there) std::_Exit(1);
    static_cast<void>(std::fprintf(stderr, "handler: %s\n", text));
  }
  bool is_there = true;
};
logger& the_logger() {
  static logger one;
  return one;
}
void log_errors(deleter& of = deleter::global()) {
  of.set_on_error([](std::exception const& error) { the_logger().log(error.what()); });
}

/// An error of a destructor that runs behind that of the logger.
void end_behind_the_logger() {
  static belongings kept;
  log_errors(*kept.own);
  kept.retire(make_fate());
  kept.own->drain();  // the end of passes, which also ends the handler, is older, too
  static hoisted const held = hoist(kept.source);
  static_cast<void>(the_logger());
}

/// The same, and the first error makes the logger.
void end_behind_a_logger_that_an_error_made() {
  log_errors();
  static belongings kept;
  log_errors(*kept.own);
  static hoisted const held = hoist(kept.source);
  forget(1);
}

/// The worker still has what to wait for when CUDA's exit handler has run.
void end_with_a_handler_older_than_cuda() {
  log_errors();
  static_cast<void>(the_logger());
  owned_stream const stream = make_stream();
  belongings kept;
  kept.launch();
  kept.retire(make_fate());
  for (int i = 0; i < 100; ++i)
    deleter::global().retire(stream_ref(stream.get()), probe(make_fate()));
}

[[noreturn]] void throw_in(char const* function) {
  throw std::runtime_error(std::string("thrown in ") + function);
}

void throw_in_a_host_node() {
  owned_stream const stream = make_stream();
  graph made;
  build(made).add(host_node([] { throw_in("host_node"); }));
  graph_exec exec(made);
  exec.launch(stream_ref(stream.get()));
  sync(stream);
}

void throw_in_destroy() {
  owned_stream const stream = make_stream();
  {
    resource_pool<int> pool(
        {}, [] { return 1; }, {}, [](int&) { throw_in("destroy"); });
    static_cast<void>(pool.claim(stream));
    sync(stream);
  }
  deleter::global().drain();
}

std::vector<named_case> const cases = register_cases({
    {"ThrowsInAHostNode", throw_in_a_host_node},
    {"ThrowsInDestroy", throw_in_destroy},
    {"ForgetsOften", [] { forget(12); }},
    {"ForgetsWithAHandler", forget_with_a_handler},
    {"EndsBehindTheLogger", end_behind_the_logger},
    {"EndsBehindALoggerThatAnErrorMade", end_behind_a_logger_that_an_error_made},
    {"EndsWithAHandlerOlderThanCuda", end_with_a_handler_older_than_cuda},
});

std::size_t count_of(std::string const& part, std::string const& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(ToldErrors, GoToStandardErrorIfThereIsNoHandlerTheFirstTen) {
  child_result const child = run_child("ForgetsOften");
  EXPECT_EQ(child.status, as_expected) << child.output;
  EXPECT_EQ(count_of("escrow: hoisted::~hoisted: the `hoisted` of ", child.output), 10U)
      << child.output;
  EXPECT_EQ(count_of("escrow: more errors follow", child.output), 1U) << child.output;
  EXPECT_EQ(count_of("\n", child.output), 11U) << child.output;
}

TEST(ToldErrors, GoToTheHandlerAlone) {
  child_result const child = run_child("ForgetsWithAHandler");
  EXPECT_EQ(child.status, as_expected) << child.output;
  EXPECT_EQ(child.output, "");
}

class EndOfTheHandler : public child_test {};

TEST_P(EndOfTheHandler, ComesBeforeThatOfWhatItUses) {
  expect_clean_end(GetParam());
}

TEST(ToldErrors, NameTheFunctionThatThrewAndMustNot) {
  auto const expect = [](char const* which, std::vector<std::string> const& parts) {
    child_result const child = run_child(which);
    EXPECT_NE(child.status, as_expected) << child.output;
    for (std::string const& part : parts) {
      EXPECT_EQ(count_of(part, child.output), 1U) << part << " is not once in: " << child.output;
    }
  };
  expect("ThrowsInAHostNode",
         {"escrow: the function of a host_node threw, which it must not", "thrown in host_node"});
  expect("ThrowsInDestroy", {"escrow: the `destroy` of a resource_pool threw, which it must not",
                             "thrown in destroy"});
}

TEST(ToldErrors, DoNotSayThatCudaEnds) {
  child_result const child = run_child("EndsWithAHandlerOlderThanCuda");
  EXPECT_EQ(child.status, as_expected) << child.output;
  EXPECT_EQ(child.output, "");
}

INSTANTIATE_TEST_SUITE_P(Each, EndOfTheHandler, testing::ValuesIn(cases.begin() + 4, cases.end()),
                         name_of_case);

}  // namespace
}  // namespace escrow::test
