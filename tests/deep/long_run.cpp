// A long run of everything at once on all devices, at full speed: claims, captures, launches,
// updates, clones, graphs built by hand and changed, retirements, shares, scratch, pools and
// deleters that come and go, execs destroyed in flight. At the end nothing may be left, and neither
// memory nor latency may have crept up. A program of its own: exit status 1 if it did.
//   ESCROW_SECONDS  how long (5; 600 with ESCROW_DEEP=1); ESCROW_SEED repeats the choices
//   ESCROW_LOADS    which loads, by name ("come_and_go,use_scratch"), to see which creeps up
//   --leak          leaks 100 bytes at each retirement, which has to be noticed
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <escrow/detail/reference_set.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "deep.hpp"
#include "long_run/samples.hpp"
#include "long_run/world.hpp"
#include "sanitizers.hpp"
#include "wait_until.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {
namespace {

// What may creep up over the second half, in KiB: what is in flight comes and goes by about as
// much. Of ten minutes that is 64 KiB a minute. In a short run, where what warms up weighs more,
// the bound is in bytes per operation.
constexpr double long_enough = 60;  // seconds
constexpr double host_kib_max = 320;
constexpr double rss_kib_max = 2560;  // malloc does not give all back at once
constexpr double device_kib_max = 320;
constexpr double short_bytes_max = 50;
// How much slower the last quarter may be than the second.
constexpr double p50_factor_max = 2;
constexpr double p99_factor_max = 4;

double number_from(char const* name, double otherwise) {
  char const* const given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtod(given, nullptr);
}

std::size_t device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  return static_cast<std::size_t>(count);
}

// What is wrong, line by line.
class verdict {
 public:
  void require(bool holds, std::string const& what) {
    if (holds) return;
    std::printf("FAILED: %s\n", what.c_str());
    is_good_ = false;
  }
  [[nodiscard]] bool is_good() const { return is_good_; }

 private:
  bool is_good_ = true;
};

// One load on one device, which ends the run if it fails.
void run_load(load one, world& all, site& here, unsigned seed) {
  try {
    must(cudaSetDevice(here.device));
    dice random(seed);
    one(all, here, random);
  } catch (std::exception const& error) {
    all.fail(error.what());
  }
}

// All loads, or those that ESCROW_LOADS names.
std::vector<load> chosen_loads() {
  constexpr std::array<std::pair<char const*, load>, 7> all{{
      {"claim_and_release", claim_and_release},
      {"retire_eagerly", retire_eagerly},
      {"share_with_streams", share_with_streams},
      {"use_scratch", use_scratch},
      {"capture_and_relaunch", capture_and_relaunch},
      {"build_and_change", build_and_change},
      {"come_and_go", come_and_go},
  }};
  char const* const names = std::getenv("ESCROW_LOADS");
  std::vector<load> chosen;
  for (auto const& [name, its] : all) {
    if (names == nullptr || std::strstr(names, name) != nullptr) chosen.push_back(its);
  }
  if (chosen.empty()) throw std::invalid_argument("ESCROW_LOADS names no load");
  return chosen;
}

void run_loads(world& all, std::vector<std::unique_ptr<site>>& sites, unsigned seed, double seconds,
               samples& measured) {
  std::vector<load> const loads = chosen_loads();
  // Each load on each device, or on one of them where there are few cores.
  bool const has_cores = std::thread::hardware_concurrency() >= loads.size() * sites.size();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < loads.size() * (has_cores ? sites.size() : 1); ++i) {
    site& here = *sites[i % sites.size()];
    threads.emplace_back(run_load, loads[i % loads.size()], std::ref(all), std::ref(here), ++seed);
  }
  auto const interval = std::chrono::duration<double>(std::clamp(seconds / 100, 0.05, 1.0));
  auto const begin = std::chrono::steady_clock::now();
  for (int i = 1; i * interval.count() <= seconds && !all.ends(); ++i) {
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<std::chrono::nanoseconds>(i * interval));
    measured.take();
  }
  all.stop.store(true, std::memory_order_relaxed);
  for (std::thread& each : threads) each.join();
}

// Everything comes back, and the books balance.
void settle(world& all, std::vector<std::unique_ptr<site>>& sites, verdict& found) {
  for (auto const& each : sites) {
    must(cudaSetDevice(each->device));
    must(cudaDeviceSynchronize());
    static_cast<void>(each->pool.close_for(std::chrono::seconds(30)));
    static_cast<void>(each->scratch.close_for(std::chrono::seconds(30)));
  }
  sites.clear();
  auto const is_balanced = [&all] {
    return all.objects.made.load() == all.objects.destroyed.load(std::memory_order_acquire) &&
           graph_registry::global().is_empty();
  };
  for (deleter* const each : {&all.worker, &all.freer}) {
    found.require(each->stop_for(std::chrono::seconds(30)), "a deleter does not stop");
    deleter_stats const left = each->stats();
    found.require(left.pending == 0 && left.in_graphs == 0 && left.leaked == 0 && left.errors == 0,
                  "a deleter has " + std::to_string(left.pending) + " pending, " +
                      std::to_string(left.in_graphs) + " in graphs, " +
                      std::to_string(left.leaked) + " held, " + std::to_string(left.errors) +
                      " errors");
  }
  found.require(wait_until(is_balanced, std::chrono::seconds(30)), "objects are left");
  found.require(all.failed().empty(), all.failed());
}

#ifdef ESCROW_TEST_RUNTIME_SIM
constexpr std::size_t kept_streams_max = 16;

// But for idle events, and a few streams, which are kept for the next that need one.
bool is_nothing_left() {
  sim::counts left = sim::alive();
  left.events = 0;
  if (left.streams <= kept_streams_max) left.streams = 0;
  return left == sim::counts{};
}
std::string what_is_left() {
  sim::counts const left = sim::alive();
  std::string text = "the runtime has handles left:";
  for (auto const& [name, count] :
       {std::pair{"streams", left.streams}, std::pair{"graphs", left.graphs},
        std::pair{"execs", left.execs + left.execs_in_flight},
        std::pair{"user objects", left.user_objects},
        std::pair{"device allocations", left.device_allocations},
        std::pair{"host allocations", left.host_allocations}, std::pair{"captures", left.captures},
        std::pair{"operations", left.pending_ops}, std::pair{"callbacks", left.pending_callbacks},
        std::pair{"libraries", left.libraries}}) {
    if (count != 0) text += ' ' + std::to_string(count) + ' ' + name;
  }
  return text;
}
#endif

void judge_memory(samples const& measured, double seconds, figures& report, verdict& found) {
  struct bound {
    char const* name;
    double sample::*value;
    double long_max;
  };
  bool const is_long = seconds >= long_enough;
  for (bound const& each : {bound{"host memory in use", &sample::heap_kib, host_kib_max},
                            bound{"resident memory", &sample::rss_kib, rss_kib_max},
                            bound{"device memory", &sample::device_kib, device_kib_max},
                            bound{"threads", &sample::threads, 5}}) {
    double const rise = measured.rise_per_minute(each.value);
    bool const is_of_memory = each.value != &sample::threads;
    report.add(std::string(each.name) + " rises by, " + (is_of_memory ? "KiB" : "") + "/min", rise);
    if (is_sanitized || (!is_long && !is_of_memory)) continue;  // a sanitizer keeps what was freed
    double const allowed = is_long ? each.long_max / (seconds / 2 / 60)
                                   : measured.operations_per_minute() * short_bytes_max / 1024;
    report.add(std::string(each.name) + " may rise by, " + (is_of_memory ? "KiB" : "") + "/min",
               allowed);
    found.require(rise <= allowed, std::string(each.name) + " rises by " + std::to_string(rise) +
                                       "/min, more than " + std::to_string(allowed));
  }
}

void judge_latency(samples const& measured, double seconds, figures& report, verdict& found) {
  struct call {
    char const* name;
    quantiles sample::*took;
  };
  for (call const& each : {call{"claim", &sample::claim}, call{"launch", &sample::launch},
                           call{"retire", &sample::retire}}) {
    auto const tell = [&](std::string const& name, double quantiles::*quantile) {
      samples::change const seen = measured.of(each.took, quantile);
      report.add(name + " early, us", seen.early);
      report.add(name + " late, us", seen.late);
      return seen;
    };
    auto const judge = [&](char const* which, double quantiles::*quantile, double factor) {
      std::string const name = std::string(each.name) + " " + which;
      auto const [early, late] = tell(name, quantile);
      if (seconds < long_enough || is_sanitized) return;
      found.require(late <= early * factor, name + " grew more than " + std::to_string(factor) +
                                                " times: " + std::to_string(late) + " us");
    };
    judge("p50", &quantiles::p50, p50_factor_max);
    judge("p99", &quantiles::p99, p99_factor_max);
    static_cast<void>(tell(std::string(each.name) + " p99.9", &quantiles::p999));
  }
}

int run(bool leaks) {
  std::size_t const devices = device_count();
  if (devices == 0) {
    std::printf("skipped: no usable GPU\n");
    return 77;
  }
  double const seconds = number_from("ESCROW_SECONDS", deep_size(5.0, 600.0));
  auto const seed = static_cast<unsigned>(number_from("ESCROW_SEED", 1));
  figures report("long_run");
  report.add("seconds", seconds);
  report.add("seed", seed);
  report.add("devices", devices);

  verdict found;
  auto all = std::make_unique<world>(leaks);
  double const device_before = device_kib_now(devices);
  std::vector<std::unique_ptr<site>> sites;
  for (std::size_t device = 0; device < devices; ++device) {
    sites.push_back(std::make_unique<site>(static_cast<int>(device), *all));
  }
  samples measured(*all, seconds, devices);
  run_loads(*all, sites, seed, seconds, measured);
  settle(*all, sites, found);

  measured.print_table();
  for (std::size_t i = 0; i < deeds; ++i) report.add(deed_names[i], all->done[i].load());
  report.add("CUDA leaves of each plain exec, bytes", measured.bytes_left_by_cuda());
  report.add("objects made", all->objects.made.load());
  report.add("objects destroyed", all->objects.destroyed.load());
  report.add("reclaimed by the worker", all->worker.stats().reclaimed);
  report.add("device memory more than before, KiB", device_kib_now(devices) - device_before);
  report.add("host memory in use, with what CUDA leaves, rises by, KiB/min",
             measured.rise_per_minute(&sample::malloced_kib));
  judge_memory(measured, seconds, report, found);
  judge_latency(measured, seconds, report, found);
  all.reset();
#ifdef ESCROW_TEST_RUNTIME_SIM
  found.require(wait_until(is_nothing_left), what_is_left());
#endif
  report.add("result", std::string(found.is_good() ? "passed" : "failed"));
  report.add_json("samples", measured.json());
  report.write();
  return found.is_good() ? 0 : 1;
}

}  // namespace
}  // namespace escrow::test

int main(int argc, char** argv) {
  try {
    return escrow::test::run(argc > 1 && std::strcmp(argv[1], "--leak") == 0);
  } catch (std::exception const& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
