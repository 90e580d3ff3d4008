// SPDX-License-Identifier: Apache-2.0
// Texts of errors: each names the call, the argument and what to do; a cuda_error of a function
// that takes a source_location names the caller's line.
#include <escrow/nodes.hpp>
#include <sstream>
#include <string_view>

#include "world.hpp"

namespace escrow::test {
namespace {

class ErrorTexts : public world {
 protected:
  [[nodiscard]] graph filling(int count) {
    return captured([&](cudaStream_t on) {
      must(launch_add(on, cells.data(), 1));
      must(cudaMemsetAsync(cells.data() + 4, 0, static_cast<std::size_t>(count), on));
    });
  }
};

TEST_F(ErrorTexts, OfMisuseNameTheCallTheArgumentAndWhatToDo) {
  graph from = captured_without_cargo();
  graph const source = std::move(from);
  graph detached = captured_without_cargo();
  owned_graph const handle(detached.detach());
  graph parent;
  graph_exec moved(source);
  graph_exec exec = std::move(moved);
  exec_set set;
  std::vector<std::string> const null{"graph is null", "moved from or detached",
                                      "pass a graph that exists"};
  // NOLINTBEGIN(bugprone-use-after-move): that is tested
  expect_refused({
      {"graph_exec::graph_exec: ", null, [&] { graph_exec{from}; }},
      {"graph_exec::graph_exec: ", null, [&] { graph_exec{detached}; }},
      {"graph_exec::graph_exec: ", null, [&] { graph_exec{from.get()}; }},
      {"graph_exec::update: ", null, [&] { exec.update(from); }},
      {"graph_exec::update: ", null, [&] { exec.update(nullptr); }},
      {"graph_exec::update", {"moved"}, [&] { moved.update(source); }},
      {"graph_exec::launch", {"moved"}, [&] { moved.launch(two); }},
      {"graph_exec::upload", {"moved"}, [&] { moved.upload(two); }},
      {"hoist: ", null, [&] { return hoist(from); }},
      {"graph::held: ", null, [&] { return from.held(); }},
      {"graph::clone", {"moved"}, [&] { return from.clone(); }},
      {"graph::add_child", {"moved"}, [&] { parent.add_child(from); }},
      {"graph::add_child", {"moved"}, [&] { from.add_child(source); }},
      {"exec_set::add: ",
       {"moved from or detached", "keep the graph"},
       [&] { return set.add(std::move(from)); }},
      {"exec_set::launch: ",
       {"`which` is of another set", "pass what add() of this set returned"},
       [&] { set.launch({}, two); }},
      {"resource_pool::resource_pool: ",
       {"`make` of \"blocks\" is empty", "pass a function"},
       [&] { block_pool(options(1), {}); }},
  });
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(node_count(parent.get()), 0U);
  EXPECT_THROW(static_cast<void>(escrow::capture(cudaStreamLegacy, [](stream_ref) {})), cuda_error);
  run(exec);
}

TEST_F(ErrorTexts, OfAFailedUpdateNameTheNodeAndTheReason) {
  graph const source = filling(4);
  graph_exec exec(source);
  graph const other_type = captured([&](cudaStream_t on) {
    must(launch_add(on, cells.data(), 1));
    must(launch_add(on, cells.data(), 1));
  });
  std::vector<cudaGraphNode_t> nodes(2);
  std::size_t count = nodes.size();
  must(cudaGraphGetNodes(other_type.get(), nodes.data(), &count));
  std::ostringstream handle;
  handle << nodes[1];
  expect_explained([&] { exec.update(other_type); },
                   {"graph_exec::update: a node (" + handle.str() + ") of `source`",
                    "it is of another type", "create another graph_exec"});
  expect_explained([&] { exec.update(captured_without_cargo()); },
                   {"of `source` does not fit: ", "create another graph_exec"});
  run(exec);
  EXPECT_EQ(cells.load(), 1);
}

TEST_F(ErrorTexts, OfAGraphThatWasChangedInASetSayNotToAndTheSetIsUnchanged) {
  graph source = filling(4);
  cudaGraph_t const handle = source.get();
  exec_set set;
  auto const changed = set.add(std::move(source));
  auto const other = set.add(filling(4));
  add_kernel(handle, tiny_call());
  expect_explained([&] { set.launch(changed, two); },
                   {"exec_set::launch: a node", "or the number of nodes, differ",
                    "do not change a graph after adding it"});
  set.launch(other, two);
  sync(two);
  EXPECT_EQ(cells.load(), 1);
  EXPECT_EQ(set.stats().switches, 0U);
}

TEST_F(ErrorTexts, OfALaunchOrUploadIntoACaptureSayWhatToCallInstead) {
  cargo taken = make_cargo();
  for (graph const& source : {captured_without_cargo(), captured(taken)}) {
    graph_exec exec(source);
    struct refused {
      char const* api;
      std::function<void()> call;
      char const* advice;
    };
    for (refused const& each : std::vector<refused>{
             {"cudaGraphLaunch", [&] { exec.launch(two); }, "child node (graph::add_child)"},
             {"cudaGraphUpload", [&] { exec.upload(two); },
              "upload before or after the capture"}}) {
      test::capture const open{two, cudaStreamCaptureModeThreadLocal};
      expect_explained(each.call, {each.api, "cudaErrorStreamCaptureUnsupported",
                                   "`stream` is being captured", each.advice});
    }
  }
}

TEST_F(ErrorTexts, OfALaunchThatOtherLaunchesComeBeforeSayTheSame) {
  cargo taken = make_cargo();
  graph const source = captured(taken);
  graph_exec first(source);
  graph_exec second(source);
  first.launch(two);
  for (cudaStream_t const on : {two.get(), three.get()}) {
    test::capture open{on, cudaStreamCaptureModeThreadLocal};
    std::string const text = message_of<usage_error>([&] { second.launch(on); });
    EXPECT_NE(text.find("graph_exec::launch: `stream` is being captured; add the graph as a child"),
              std::string::npos)
        << text;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  second.launch(three);
  second.launch(two);
  sync_all();
}

struct row {
  int line;  // of the call, which may be on the next one
  char const* call;
  char const* api;
  std::function<void()> run;
};

// The API fails in each of them.
void expect_callers_lines(std::vector<row> const& rows) {
  for (row const& each : rows) {
    SCOPED_TRACE(each.call);
    sim::fail_call_here(each.api, cudaErrorUnknown);
    try {
      each.run();
      ADD_FAILURE() << each.call << " threw nothing";
    } catch (cuda_error const& error) {
      int const line = static_cast<int>(error.where().line());
      EXPECT_TRUE(line == each.line || line == each.line + 1) << error.what();
      EXPECT_EQ(std::string_view(error.where().file_name()), __FILE__) << error.what();
      EXPECT_STREQ(error.api(), each.api);
      EXPECT_EQ(error.status(), cudaErrorUnknown);
      std::string const place = std::string(__FILE__) + ":" + std::to_string(line) + ": ";
      EXPECT_EQ(std::string_view(error.what()).find(place + each.call + ": "), 0U) << error.what();
      EXPECT_NE(std::string_view(error.what()).find(each.api), std::string::npos) << error.what();
    }
    sim::clear_faults();
  }
}

TEST_F(ErrorTexts, OfAFailedCallNameTheCallersLine) {
  block_pool pool = make_pool(1);
  cargo taken = make_cargo();
  scratch_pool scratch(options(1));
  graph const source = captured_without_cargo();
  graph_exec exec(source);
  exec_set set;
  auto const first = set.add(captured_without_cargo());
  auto const second = set.add(captured_without_cargo());
  graph refused = filling(4);
  graph_exec launched(source);
  stream_launcher launcher(graph_exec(captured(taken)), two);
  launcher.launch();
  owned_event const event = make_event();
  auto const owner = [] { return std::make_unique<int>(); };
  std::vector<row> const rows{
      {__LINE__, "graph_exec::graph_exec", "cudaGraphInstantiate",
       [&] { graph_exec const another(source); }},
      {__LINE__, "graph_exec::graph_exec", "cudaGraphInstantiate",
       [&] { graph_exec const another(source.get()); }},
      {__LINE__, "graph_exec::launch", "cudaGraphLaunch", [&] { exec.launch(two); }},
      {__LINE__, "graph_exec::upload", "cudaGraphUpload", [&] { exec.upload(two); }},
      {__LINE__, "graph_exec::update", "cudaGraphExecUpdate", [&] { exec.update(source); }},
      {__LINE__, "graph_exec::update", "cudaGraphExecUpdate", [&] { exec.update(source.get()); }},
      {__LINE__, "exec_set::add", "cudaGraphInstantiate",
       [&] { return set.add(std::move(refused)); }},
      {__LINE__, "exec_set::launch", "cudaGraphExecUpdate", [&] { set.launch(first, two); }},
      {__LINE__, "exec_set::launch", "cudaGraphLaunch", [&] { set.launch(second, two); }},
      {__LINE__, "stream_launcher::stream_launcher", "cudaStreamGetId",
       [&] { stream_launcher(std::move(launched), two); }},
      {__LINE__, "stream_launcher::launch", "cudaGraphLaunch", [&] { launcher.launch(); }},
      {__LINE__, "stream_launcher::flush", "cudaStreamGetCaptureInfo", [&] { launcher.flush(); }},
      {__LINE__, "deleter::retire", "cudaStreamGetId", [&] { worker->retire(two, owner()); }},
      {__LINE__, "deleter::retire", "cudaGetDevice",
       [&] { worker->retire(source.get(), owner()); }},
      {__LINE__, "deleter::retire", "cudaGetDevice", [&] { worker->retire(owner()); }},
      {__LINE__, "deleter::retire_after", "cudaGetDevice",
       [&] { worker->retire_after(event_ref(event), owner()); }},
      {__LINE__, "retain", "cudaStreamGetId", [&] { retain(two, owner()); }},
      {__LINE__, "resource_pool::claim", "cudaStreamGetId", [&] { return pool.claim(two); }},
      {__LINE__, "resource_pool::try_claim", "cudaStreamGetId",
       [&] { return pool.try_claim(two); }},
      {__LINE__, "scratch_pool::claim", "cudaMallocFromPoolAsync",
       [&] { return scratch.claim(two, 300); }},
  };
  expect_callers_lines(rows);
}

TEST_F(ErrorTexts, OfAFailedCallOfGraphsNodesAndMemoryNameTheCallersLine) {
  cargo taken = make_cargo();
  scratch_pool scratch(options(1));
  scratch.claim(two, 300).release();
  stream_allocator memory(options(1));
  graph const source = captured_without_cargo();
  owned_event const event = make_event();
  graph by_hand;
  auto const node = build(by_hand).add(memset_node(cells.data(), {.width = 1}));
  hoisted held = hoist(captured(taken));
  std::vector<row> const rows{
      {__LINE__, "graph::graph", "cudaGraphCreate", [&] { graph const another; }},
      {__LINE__, "graph::clone", "cudaGraphClone", [&] { return source.clone(); }},
      {__LINE__, "graph::add_child", "cudaGraphAddChildGraphNode",
       [&] { return by_hand.add_child(source); }},
      {__LINE__, "graph::write_dot", "cudaGraphDebugDotPrint",
       [&] { source.write_dot("/dev/null"); }},
      {__LINE__, "hoist", "cudaGraphGetNodes", [&] { return hoist(by_hand); }},
      {__LINE__, "hoisted::release_after", "cudaEventQuery",
       [&] { held.release_after(event_ref(event)); }},
      {__LINE__, "deleter::poll", "cudaGetDevice", [&] { return worker->poll(); }},
      {__LINE__, "graph_builder_ref::add", "cudaGraphAddNode",
       [&] { return build(by_hand).add(memset_node(cells.data(), {.width = 1})); }},
      {__LINE__, "graph_builder_ref::join", "cudaGraphAddNode",
       [&] { return build(by_hand).join(); }},
      {__LINE__, "node::destroy", "cudaGraphDestroyNode", [&] { node.destroy(); }},
      {__LINE__, "node::set", "cudaGraphNodeSetParams",
       [&] { node.set(memset_node(cells.data(), {.width = 2})); }},
      {__LINE__, "launch", "cudaLaunchKernelExC",
       [&] { launch(two, kernel(kernel_address(kernel_id::tiny)), {}); }},
      {__LINE__, "scratch_pool::trim", "cudaGetDevice", [&] { return scratch.trim(); }},
      {__LINE__, "stream_allocator::allocate", "cudaStreamCreateWithFlags",
       [&] { return memory.allocate(300); }},
  };
  expect_callers_lines(rows);
  held.release();
}

// The text of a call's error, behind the call's line, which may be the next one.
template <class Error, class Call>
std::string text_at_line(int line, Call&& call) {
  try {
    static_cast<void>(call());
    ADD_FAILURE() << "nothing was thrown";
  } catch (Error const& error) {
    EXPECT_EQ(typeid(error), typeid(Error));
    int const found = static_cast<int>(error.where().line());
    EXPECT_TRUE(found == line || found == line + 1) << error.what();
    EXPECT_EQ(std::string_view(error.where().file_name()), __FILE__) << error.what();
    std::string const place = std::string(__FILE__) + ":" + std::to_string(found) + ": ";
    std::string const text = error.what();
    EXPECT_EQ(text.find(place), 0U) << text;
    EXPECT_EQ(text.find(place, 1), std::string::npos) << "twice: " << text;
    return text.substr(std::min(text.size(), place.size()));
  }
  return "";
}

TEST_F(ErrorTexts, OfEachTypeNameTheCallersLineOnce) {
  void const* const nowhere = nullptr;
  std::string text = text_at_line<usage_error>(__LINE__, [&] { launch(two, kernel(nowhere), {}); });
  EXPECT_EQ(text.find("launch: the kernel is null"), 0U) << text;
  text = text_at_line<usage_error>(__LINE__, [&] { resource_pool<int> const none({}, {}); });
  EXPECT_EQ(text.find("resource_pool::resource_pool: "), 0U) << text;

  block_pool full = make_pool(1);
  auto const taken = full.claim(one);
  text = text_at_line<pool_exhausted>(__LINE__, [&] { return full.claim(two); });
  EXPECT_EQ(text.find("resource_pool::claim: all 1 slots"), 0U) << text;
  constexpr char const* goes_on = "; a capture that plain CUDA began goes on: end it";
  EXPECT_EQ(text.find(goes_on), std::string::npos) << text;
  owned_graph const plain = captured_plainly([&](cudaStream_t on) {
    text = text_at_line<pool_exhausted>(__LINE__, [&] { return full.claim(on); });
  });
  EXPECT_NE(text.find(goes_on), std::string::npos) << text;

  cargo shared = make_cargo();
  graph source = captured(shared);
  graph const copy = source.clone();
  graph_exec exec(copy);
  hoisted held = hoist(source);
  hoisted other = hoist(copy);
  held.launch(one, [&] {
    text = text_at_line<usage_error>(__LINE__, [&] { exec.launch(two); });
    EXPECT_EQ(text.find("graph_exec::launch: this thread"), 0U) << text;
    std::jthread([&] {
      constexpr std::chrono::nanoseconds at_once(0);
      auto const nothing = [] {};
      text = text_at_line<group_busy>(__LINE__, [&] { other.launch(two, nothing, at_once); });
      EXPECT_EQ(text.find("hoisted::launch: another thread"), 0U) << text;
    }).join();
  });
  other.release();
  held.release_after(one);

  // What one of these functions calls of Escrow's is at the same line.
  stream_allocator memory(options(1));
  text = text_at_line<usage_error>(__LINE__, [&] { return memory.allocate(8, 3); });
  EXPECT_EQ(text.find("stream_allocator::allocate: "), 0U) << text;
  sim::fail_call_here("cudaMallocFromPoolAsync", cudaErrorUnknown);
  text = text_at_line<cuda_error>(__LINE__, [&] { return memory.allocate(one, 8); });
  sim::clear_faults();
}

TEST_F(ErrorTexts, OfAnErrorThatACallersFunctionThrowsAreLeftAlone) {
  class own_error : public usage_error {
    using usage_error::usage_error;
  };
  resource_pool<int> pool(options(1), []() -> int { throw own_error("mine", "wrong", "mend it"); });
  EXPECT_EQ(message_of<own_error>([&] { static_cast<void>(pool.claim(one)); }),
            "mine: wrong; mend it");
}

TEST_F(ErrorTexts, OfALaunchWhoseShapeDoesNotFitNameWhatDoesNotAndWhatToDo) {
  kernel const tiny(kernel_address(kernel_id::tiny));
  struct shape {
    launch_config config;
    std::vector<std::string> parts;
  };
  for (shape const& each : std::vector<shape>{
           {{.grid = {0}}, {"`grid` has a 0: give at least 1", "grid {0, 1, 1}"}},
           {{.block = {32, 0}}, {"`block` has a 0", "block {32, 0, 1}"}},
           {{.block = {64, 32}},
            {"`block` has 2048 threads, the kernel allows 1024: use smaller blocks"}},
           {{.shared_bytes = 64 * 1024},
            {"the kernel allows 49152 `shared_bytes`",
             "raise cudaFuncAttributeMaxDynamicSharedMemorySize", "shared_bytes 65536"}},
       }) {
    sim::fail_call_here("cudaLaunchKernelExC", cudaErrorInvalidValue);
    std::string const text =
        text_at_line<cuda_error>(__LINE__, [&] { launch(two, tiny, each.config); });
    for (std::string const& part : each.parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    sim::clear_faults();
  }
}

}  // namespace
}  // namespace escrow::test
