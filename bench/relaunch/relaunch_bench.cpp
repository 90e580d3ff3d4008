// SPDX-License-Identifier: Apache-2.0
// What a launch costs, again and again: bare graphs, and graphs that hold something.
//
// Each form takes turns with a bare graph on the same stream, and what counts is its share of that
// one's figures. bare and bare_again are the same: what lies between them and 1 is noise.
#include <array>
#include <future>

#include "forms.hpp"
#include "memory.hpp"
#include "owners.hpp"
#include "thread_team.hpp"

namespace escrow::bench {
namespace {

// Each with sizes so that a row takes about 5 ms of a GPU that needs 0.7 us for a kernel.
using sized_shape = std::pair<shape, sizes>;

constexpr sized_shape line_1{{"kernels:1", 1, 1}, {10, 2000, 200, 8}};
constexpr sized_shape line_8{line_of_8, {6, 600, 200, 8}};
constexpr sized_shape line_64{{"kernels:64", 1, 64}, {3, 100, 200, 2}};
constexpr sized_shape line_512{{"kernels:512", 1, 512}, {1, 16, 32, 1}};
constexpr sized_shape fork4{{"fork4", 4, 16}, {4, 200, 200, 2}};

// With one user object, as CUDA's manual has it.
relaunch_form make_user_object(cudaStream_t stream, shape const& of) {
  auto const graph = captured_shape(stream, of);
  auto const object = std::make_shared<test::witness>();
  object->move_to(graph);
  return form_of(graph, [=] { test::must(object->wait(), "the user object is destroyed"); });
}

// The graph of make_escrow() in a stream_launcher: no launch is recorded.
relaunch_form make_lazy(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  graph_exec exec(pooled_shape(*around, stream, of));
  exec.upload(stream);
  auto const launcher = std::make_shared<stream_launcher>(std::move(exec), stream);
  return {.settle = [=] { settle(around->deleter); },
          .launch = [=](cudaStream_t) { launcher->launch(); }};
}

// The graph of make_escrow(), launched many times by one call.
constexpr std::size_t copies = 64;

relaunch_form make_many(cudaStream_t stream, shape const& of) {
  auto const around = std::make_shared<pooled_blocks>();
  auto const exec = std::make_shared<graph_exec>(pooled_shape(*around, stream, of),
                                                 instantiate_options{.copies = copies});
  test::must(exec->is_bare(), "the exec is bare");
  return {.settle = [=] { settle(around->deleter); },
          .launch = [=](cudaStream_t on) { exec->launch(on); },
          .launch_many = [=](cudaStream_t on,
                             int times) { exec->launch_many(on, static_cast<std::size_t>(times)); },
          .upload = [=](cudaStream_t on) { exec->launch_many(on, copies + 1); }};  // both execs
}

using form_arm = arm<relaunch_form(cudaStream_t stream, shape const& of)>;

constexpr form_arm forms[]{
    {"bare", &make_bare},
    {"bare_again", &make_bare},
    {"escrow", &make_escrow<0>},
    {"lazy", &make_lazy},
    {"many", &make_many},
    {"escrow_4096_objects", &make_escrow<4096>},
    {"user_object", &make_user_object},
};

void add_form(settings const& how, std::string const& name, sized_shape const& each) {
  add_launches(
      how, "relaunch/" + name + "/" + each.first.name,
      [of = each.first](cudaStream_t stream) { return make_bare(stream, of); },
      [=, of = each.first](cudaStream_t stream) {
        return arm_named(name, forms).setup(stream, of);
      },
      each.second);
}

// How many launches a host makes before it blocks: a kernel that waits for a flag goes first, so
// that none of them ends.
void run_ahead(benchmark::State& state, form_arm const& which, int launches_max) {
  constexpr std::chrono::milliseconds more_than_all_need{300};
  test::pinned_flag flag;
  test::owned_stream const stream = test::make_stream();
  relaunch_form form = which.setup(stream, line_of_8);
  form.upload(stream);
  form.launch(stream);
  test::must(cudaStreamSynchronize(stream));
  int made = 0;
  repeat(state, [&] {
    test::must(test::launch_wait_flag(stream, flag.get()));
    std::atomic<bool> is_over{false};  // relaxed: set long after all launches that do not block
    auto const raising = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(more_than_all_need);
      is_over.store(true, std::memory_order_relaxed);
      flag.raise();  // without it, a launch that blocks would never return
    });
    return us_of([&] {
      for (made = 0; made < launches_max; ++made) {
        form.launch(stream);
        if (is_over.load(std::memory_order_relaxed)) break;  // this launch has blocked
      }
    });
  });
  test::must(cudaStreamSynchronize(stream));
  form.end();
  state.counters["launches"] = made;
}

// What a thread with a stream, a capture and an exec of its own does.
auto launching(form_arm const& which, int launches) {
  return [=](std::size_t) -> thread_team::part {
    auto const stream = std::make_shared<test::owned_stream>(test::make_stream());
    auto const form = which.setup(*stream, line_of_8);
    form.upload(*stream);
    test::must(cudaStreamSynchronize(*stream));
    return [=] {
      for (int i = 0; i < launches; ++i) form.launch(*stream);
      test::must(cudaStreamSynchronize(*stream));
    };
  };
}

// Several threads: a round is a row of launches on each of them, and takes as long as the slowest.
// Rounds alternate with those of as many threads with bare graphs.
void on_threads(benchmark::State& state, form_arm const& which, int threads, int launches) {
  thread_team bare(threads, launching(arm_named("bare", forms), launches));
  thread_team form(threads, launching(which, launches));
  for (thread_team* const each : {&bare, &form}) static_cast<void>(each->round());
  turns taken;
  repeat(state, [&] {
    return 1e6 / launches *
           taken.add_around([&] { return bare.round(); }, [&] { return form.round(); });
  });
  state.counters["throughput_of_bare"] = 1 / taken.share();
}

constexpr content with_64_owners{.owners = 64};

// Between two graphs, each with 64 owners of its own, to and fro.
void update(benchmark::State& state) {
  graph_maker make;
  turns first, later;  // the first costs more
  repeat(state, [&] {
    make.settle();
    std::array<test::owned_graph, 2> const plain{make.plain(), make.plain()};
    std::array<graph, 2> const ours{make.ours(with_64_owners), make.ours(with_64_owners)};
    test::owned_exec const plain_exec = test::instantiate(plain[0]);
    graph_exec exec(ours[0]);
    test::must(cudaGraphLaunch(plain_exec, make.stream));
    exec.launch(make.stream.get());
    test::must(cudaStreamSynchronize(make.stream));
    auto const add = [&](turns& to, std::size_t index) {
      cudaGraphExecUpdateResultInfo result{};
      return to.add_us([&] { test::must(cudaGraphExecUpdate(plain_exec, plain[index], &result)); },
                       [&] { exec.update(ours[index]); });
    };
    double const us = add(first, 1);
    for (std::size_t const index : {0U, 1U, 0U, 1U}) add(later, index);
    test::must(exec.is_bare(), "the exec is bare");
    return us;
  });
  later.report(state);
}

// What copies take: time to instantiate, over an exec without any, and memory of the device.
void copies_cost(benchmark::State& state, int many) {
  graph_maker make;
  turns taken;
  double kib = 0;
  repeat(state, [&] {
    make.settle();
    graph const source = make.ours({});
    std::optional<graph_exec> none, all;
    double const before = free_device_bytes();
    double const us = taken.add_us(
        [&] { none.emplace(source); },
        [&] {
          all.emplace(source, instantiate_options{.copies = static_cast<std::size_t>(many)});
        });
    all->launch_many(make.stream.get(), all->copies());
    test::must(cudaStreamSynchronize(make.stream));
    kib = (before - free_device_bytes()) / 1024;
    return us;
  });
  taken.report(state);
  state.counters.insert(
      {{"us_of_copy", (taken.other() - taken.plain()) / many}, {"device_kib_of_copy", kib / many}});
}

// A row of launches of plain CUDA while another exec is uploaded but was not launched, over the
// same row before that. The other's launch ends the difference.
void beside_uploaded(benchmark::State& state, int launches) {
  test::owned_stream const stream = test::make_stream();
  shape const line{"", 1, 64};
  test::owned_exec const launched = test::instantiate(captured_shape(stream, line));
  auto const row = [&] {
    for (int i = 0; i < launches; ++i) test::must(cudaGraphLaunch(launched, stream));
    test::must(cudaStreamSynchronize(stream));
  };
  row();
  turns taken;
  repeat(state, [&] {
    test::owned_exec const other = test::instantiate(captured_shape(stream, line));
    double const before = us_of(row);
    test::must(cudaGraphUpload(other, stream));
    test::must(cudaStreamSynchronize(stream));
    double const beside = us_of(row);
    test::must(cudaGraphLaunch(other, stream));
    test::must(cudaStreamSynchronize(stream));
    taken.add([&] { return before / launches; }, [&] { return beside / launches; });
    return beside / launches;
  });
  taken.report(state);
}

// The exec has been launched and is the last to hold the owners, so all of them are released within
// the call.
void destroy(benchmark::State& state) {
  graph_maker make;
  turns taken;
  repeat(state, [&] {
    make.settle();
    test::owned_exec plain = test::instantiate(make.plain());
    std::optional<graph_exec> ours(std::in_place, make.ours(with_64_owners));
    test::must(cudaGraphLaunch(plain, make.stream));
    test::must(cudaStreamSynchronize(make.stream));
    ours->launch(make.stream.get());
    test::must(cudaStreamSynchronize(make.stream));
    return taken.add_us([&] { plain.reset(); }, [&] { ours.reset(); });
  });
  taken.report(state);
}

}  // namespace

void register_all(settings const& how) {
  for (sized_shape const& each : {line_1, line_8, line_64, line_512, fork4}) {
    for (char const* const name : {"bare", "bare_again", "escrow", "user_object"}) {
      add_form(how, name, each);
    }
  }
  for (sized_shape const& each : {line_1, line_8, line_64}) add_form(how, "lazy", each);
  for (sized_shape const& each : {line_1, line_8, line_64}) add_form(how, "many", each);
  add("copies/kernels:8", {how.choose(3, 1), how.choose(3, 1), benchmark::kMicrosecond},
      &copies_cost, how.choose(1024, 8));
  add("beside_uploaded/kernels:64", {how.choose(20, 1), repetitions(how)}, &beside_uploaded,
      how.choose(200, 2));
  add_form(how, "escrow_4096_objects", line_8);
  int const launches_max = how.choose(1200, 4);
  for (std::string const name : {"bare", "escrow", "user_object"}) {
    add("run_ahead/" + name, {1, how.choose(3, 1), benchmark::kMillisecond}, &run_ahead,
        arm_named(name, forms), launches_max);
  }
  int const threads = how.choose(12, 2), launches = how.choose(400, 2);
  for (std::string const name : {"bare_again", "escrow", "user_object"}) {
    add("threads12/" + name, {how.choose(5, 1), repetitions(how)}, &on_threads,
        arm_named(name, forms), threads, launches);
  }
  times const often{how.choose(60, 2), repetitions(how)};
  add("objects64/instantiate", often, &measure_instantiation, with_64_owners.owners);
  add("objects64/update", often, &update);
  add("objects64/destroy", often, &destroy);
  register_interference(how);
}

}  // namespace escrow::bench
