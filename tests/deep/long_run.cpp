// A long run of everything at once on all devices, at full speed: claims, captures, launches,
// updates, clones, graphs built by hand and changed, retirements, shares, scratch, pools and
// deleters that come and go, execs destroyed in flight. At the end nothing may be left, and neither
// memory nor latency may have crept up. A program of its own: exit status 1 if it did.
//   ESCROW_SECONDS  how long (5; 600 with ESCROW_DEEP=1); ESCROW_STRESS_SEED repeats the choices
//   ESCROW_LOADS    which loads, by name ("come_and_go,use_scratch"), to see which creeps up
//   --leak          leaks 100 bytes at each retirement, which has to be noticed
#include <cstring>
#include <stdexcept>

#include "deep.hpp"
#include "samples.hpp"

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

using all_sites = std::vector<std::unique_ptr<site>>;

// All loads, or those that ESCROW_LOADS names: each on each device, or on one of them where there
// are few cores.
std::vector<std::unique_ptr<loader>> make_loaders(load_arena& all, all_sites& sites) {
  char const* const names = std::getenv("ESCROW_LOADS");
  std::vector<loader::load> chosen;
  for (auto const& [name, its] : all_loads) {
    if (names == nullptr || std::strstr(names, name) != nullptr) chosen.push_back(its);
  }
  if (chosen.empty()) throw std::invalid_argument("ESCROW_LOADS names no load");
  bool const has_cores = std::thread::hardware_concurrency() >= chosen.size() * sites.size();
  std::vector<std::unique_ptr<loader>> made;
  for (std::size_t i = 0; i < chosen.size() * (has_cores ? sites.size() : 1); ++i) {
    site& here = *sites[i % sites.size()];
    must(cudaSetDevice(here.device));
    made.push_back(std::make_unique<loader>(all, here, i + 1, chosen[i % chosen.size()]));
  }
  return made;
}

void run_loads(load_arena& all, all_sites& sites, double seconds_max, samples& measured) {
  auto const loaders = make_loaders(all, sites);
  std::vector<std::jthread> threads;
  for (auto const& each : loaders) threads.emplace_back([&each] { each->run_on_device(); });
  auto const interval = std::chrono::duration<double>(std::clamp(seconds_max / 100, 0.05, 1.0));
  auto const begin = std::chrono::steady_clock::now();
  for (int i = 1; i * interval.count() <= seconds_max && !all.counts.stop; ++i) {
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<std::chrono::nanoseconds>(i * interval));
    measured.take();
  }
  all.counts.stop.store(true, std::memory_order_relaxed);
  threads.clear();
}

// Everything comes back, and the books balance.
void settle(load_arena& all, all_sites& sites, verdict& found) {
  for (auto const& each : sites) {
    must(cudaSetDevice(each->device));
    must(cudaDeviceSynchronize());
    static_cast<void>(each->pool.close_for(std::chrono::seconds(30)));
    static_cast<void>(each->scratch.close_for(std::chrono::seconds(30)));
  }
  sites.clear();
  auto const is_balanced = [&all] {
    return all.counts.made.load() == all.counts.destroyed.load(std::memory_order_acquire) &&
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
std::string what_is_left() {
  sim::counts left = sim::alive();
  left.events = 0;
  if (left.streams <= kept_streams_max) left.streams = 0;
  if (left == sim::counts{}) return "";
  std::string text = "the runtime has handles left:";
  for (auto const& [name, count] : {std::pair{"streams", left.streams},
                                    {"graphs", left.graphs},
                                    {"execs", left.execs + left.execs_in_flight},
                                    {"user objects", left.user_objects},
                                    {"device allocations", left.device_allocations},
                                    {"host allocations", left.host_allocations},
                                    {"captures", left.captures},
                                    {"operations", left.pending_ops},
                                    {"callbacks", left.pending_callbacks},
                                    {"libraries", left.libraries}}) {
    if (count != 0) text += ' ' + std::to_string(count) + ' ' + name;
  }
  return text;
}
#endif

void judge_memory(samples const& measured, double seconds_max, figures& report, verdict& found) {
  struct bound {
    char const* name;
    column value;
    double long_max;
  };
  bool const is_long = seconds_max >= long_enough;
  for (bound const& each :
       {bound{"host memory in use", heap_kib, host_kib_max},
        bound{"resident memory", rss_kib, rss_kib_max},
        bound{"device memory", device_kib, device_kib_max}, bound{"threads", thread_count, 5}}) {
    double const rise = measured.rise_per_minute(each.value);
    bool const is_of_memory = each.value != thread_count;
    std::string const unit = is_of_memory ? "KiB/min" : "/min";
    report.add(std::string(each.name) + " rises by, " + unit, rise);
    if (is_sanitized || (!is_long && !is_of_memory)) continue;  // a sanitizer keeps what was freed
    double const allowed = is_long ? each.long_max / (seconds_max / 2 / 60)
                                   : measured.operations_per_minute() * short_bytes_max / 1024;
    report.add(std::string(each.name) + " may rise by, " + unit, allowed);
    found.require(rise <= allowed, std::string(each.name) + " rises by " + std::to_string(rise) +
                                       "/min, more than " + std::to_string(allowed));
  }
}

void judge_latency(samples const& measured, double seconds_max, figures& report, verdict& found) {
  for (std::size_t i = latencies; i < columns; ++i) {
    auto const [early, late] = measured.of(i);
    report.add(name_of(i) + ", early", early);
    report.add(name_of(i) + ", late", late);
    double const factor = std::array{p50_factor_max, p99_factor_max, 0.0}[(i - latencies) % 3];
    if (seconds_max < long_enough || is_sanitized || factor == 0) continue;
    found.require(late <= early * factor, name_of(i) + " grew more than " + std::to_string(factor) +
                                              " times: " + std::to_string(late));
  }
}

int run(bool leaks) {
  std::size_t const devices = device_count();
  if (devices == 0) {
    std::printf("skipped: no usable GPU\n");
    return 77;
  }
  double const seconds_max = setting("ESCROW_SECONDS", deep_size(5.0, 600.0));
  figures report("long_run");
  report.add("seconds", seconds_max);
  report.add("seed", setting("ESCROW_STRESS_SEED", 1));
  report.add("devices", devices);

  verdict found;
  auto all = std::make_unique<load_arena>();
  all->leaks = leaks;
  double const device_before = device_kib_now(devices);
  all_sites sites;
  for (std::size_t device = 0; device < devices; ++device) {
    sites.push_back(std::make_unique<site>(static_cast<int>(device), *all));
  }
  samples measured(*all, seconds_max, devices);
  run_loads(*all, sites, seconds_max, measured);
  settle(*all, sites, found);

  std::printf("%s\n", measured.table().c_str());
  for (std::size_t i = 0; i < deeds; ++i) report.add(deed_names[i], all->done[i].load());
  report.add("CUDA leaves of each plain exec, bytes", measured.bytes_left_by_cuda());
  report.add("objects made", all->counts.made.load());
  report.add("objects destroyed", all->counts.destroyed.load());
  report.add("reclaimed by the worker", all->worker.stats().reclaimed);
  report.add("device memory more than before, KiB", device_kib_now(devices) - device_before);
  report.add("host memory in use, with what CUDA leaves, rises by, KiB/min",
             measured.rise_per_minute(malloced_kib));
  judge_memory(measured, seconds_max, report, found);
  judge_latency(measured, seconds_max, report, found);
  all.reset();
#ifdef ESCROW_TEST_RUNTIME_SIM
  found.require(wait_until([] { return what_is_left().empty(); }), what_is_left());
#endif
  report.add("result", std::string(found.is_good() ? "passed" : "failed"));
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
