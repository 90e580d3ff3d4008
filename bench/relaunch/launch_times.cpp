// Rows and bursts of launches.

#include "forms.hpp"

namespace escrow::bench {
namespace {

constexpr int burst_max = 16;

void launch(relaunch_form const& form, cudaStream_t stream, int launches) {
  for (int i = 0; i < launches; ++i) form.launch(stream);
}

double row_us(relaunch_form const& form, cudaStream_t stream, int launches) {
  return us_of([&] {
           launch(form, stream, launches);
           test::must(cudaStreamSynchronize(stream));
         }) /
         launches;
}

double burst_us(relaunch_form const& form, cudaStream_t stream, int launches) {
  double const us = us_of([&] { launch(form, stream, launches); });
  test::must(cudaStreamSynchronize(stream));
  return us / launches;
}

void measure_launches(benchmark::State& state, form_maker const& make_bare,
                      form_maker const& make_form, sizes const& size) {
  test::owned_stream const stream = test::make_stream();
  turns rows, steady, bursts;
  std::size_t slots_held = 0, owed = 0;
  repeat(state, [&] {
    relaunch_form bare = make_bare(stream), form = make_form(stream);
    for (relaunch_form const* const each : {&bare, &form}) {  // warms up
      each->upload(stream);
      static_cast<void>(row_us(*each, stream, std::max(size.row / 4, 1)));
    }
    auto const in_turns = [&](turns& taken, auto measure, int launches) {
      return taken.add_around([&] { return measure(bare, stream, launches); },
                              [&] { return measure(form, stream, launches); });
    };
    double const us = in_turns(rows, &row_us, size.row);
    in_turns(steady, &burst_us, size.steady);
    for (int i = 0; i < size.bursts; ++i) {
      in_turns(bursts, &burst_us, std::min(burst_max, size.steady));
    }
    slots_held = form.slots_held();
    for (auto const& [name, count] : form.facts) state.counters[name] = count;
    owed += form.end();
    owed += bare.end();
    return us;
  });
  state.counters.insert({{"launches_per_s", 1e6 / rows.other()},
                         {"bare_us", rows.plain()},
                         {"host_us", steady.other()},
                         {"bare_host_us", steady.plain()},
                         {"host_burst_us", bursts.other()},
                         {"bare_host_burst_us", bursts.plain()},
                         {"throughput_of_bare", 1 / rows.share()},
                         {"host_of_bare", steady.share()},
                         {"host_burst_of_bare", bursts.share()},
                         {"host_launches", size.steady},
                         {"slots_held", slots_held},
                         {"destructors_owed", owed}});
}

}  // namespace

void add_launches(settings const& how, std::string const& name, form_maker const& bare,
                  form_maker const& form, sizes const& gpu) {
  sizes const size{.instances = how.choose(gpu.instances, 1),
                   .row = how.choose(gpu.row, 2),
                   .steady = how.choose(gpu.steady, 2),
                   .bursts = how.choose(gpu.bursts, 1)};
  add(name, {size.instances, repetitions(how)}, &measure_launches, bare, form, size);
}

}  // namespace escrow::bench
