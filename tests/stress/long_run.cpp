// SPDX-License-Identifier: Apache-2.0
// A long run of everything at once on all devices, at full speed: claims, captures, launches,
// updates, clones, graphs built by hand and changed, retirements, shares, scratch, pools and
// deleters that come and go, execs destroyed in flight. At the end nothing may be left, and neither
// memory nor latency may have crept up.
//   ESCROW_SECONDS  how long (5; 600 with ESCROW_DEEP=1); ESCROW_STRESS_SEED repeats the choices
//   ESCROW_LOADS    which loads, by name ("come_and_go,use_scratch"), to see which creeps up
#include <malloc.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "loads.hpp"

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

/// Memory in use on the heap, as malloc sees it.
double heap_kib_now() {
  struct mallinfo2 const found = mallinfo2();
  return static_cast<double>(found.uordblks + found.hblkhd) / 1024;
}

/// Memory in use on all devices. Leaves the last one current.
double device_kib_now(int devices) {
  double used = 0;
  for (int device = 0; device < devices; ++device) {
    must(cudaSetDevice(device));
    std::size_t free = 0;
    std::size_t total = 0;
    must(cudaMemGetInfo(&free, &total));
    used += static_cast<double>(total - free) / 1024;
  }
  return used;
}

/// Bytes of the host's heap that CUDA itself keeps for ever of each exec with a user object that
/// was launched: 208 on an H200 with CUDA 13.0. Measured with plain CUDA, so that nothing of
/// Escrow's can hide behind it. Call it while nothing else runs.
double bytes_left_by_a_plain_exec() {
  if (is_simulated()) return 0;
  owned_stream const stream = make_stream();
  auto const live = [&](int times) {
    for (int i = 0; i < times; ++i) {
      owned_graph graph = tiny_graph();
      cudaUserObject_t object = nullptr;
      must(cudaUserObjectCreate(
          &object, &graph, [](void*) {}, 1, cudaUserObjectNoDestructorSync));
      must(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
      owned_exec const exec = instantiate(graph);
      must(cudaGraphLaunch(exec, stream));
      sync(stream);
    }
  };
  live(500);  // what CUDA sets up once
  double const before = heap_kib_now();
  live(2000);
  return std::max(0.0, heap_kib_now() - before) * 1024 / 2000;
}

/// A line of /proc/self/status.
double of_process(std::string const& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name)) return std::stod(line.substr(name.size()));
  return 0;
}

/// Of the line that fits best.
double slope(std::vector<std::array<double, 2>> const& points) {
  auto const n = static_cast<double>(points.size());
  double mean_x = 0;
  double mean_y = 0;
  for (auto const& [x, y] : points) mean_x += x / n, mean_y += y / n;
  double above = 0;
  double below = 0;
  for (auto const& [x, y] : points) {
    above += (x - mean_x) * (y - mean_y);
    below += (x - mean_x) * (x - mean_x);
  }
  return below == 0 ? 0 : above / below;
}

/// What is measured. Latencies are of the time since the last sample.
enum column : std::size_t {
  seconds,
  rss_kib,
  heap_kib,    // in use, as malloc sees it, without what CUDA leaves of plain execs
  device_kib,  // in use on all devices
  thread_count,
  operations,
  latencies,
  columns = latencies + 6
};
constexpr std::array<char const*, columns> names{"s",
                                                 "rss KiB",
                                                 "heap KiB",
                                                 "device KiB",
                                                 "threads",
                                                 "done",
                                                 "claim p50 us",
                                                 "claim p99 us",
                                                 "launch p50 us",
                                                 "launch p99 us",
                                                 "retire p50 us",
                                                 "retire p99 us"};

class samples {
 public:
  samples(load_arena& all, double seconds_max, int devices) : all_(all), devices_(devices) {
    taken_.reserve(static_cast<std::size_t>(seconds_max * 10) + 100);  // measuring must not grow
  }

  void take() {
    std::array<double, columns> now{};
    now[seconds] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    now[rss_kib] = of_process("VmRSS:");
    now[heap_kib] =
        heap_kib_now() - left_by_cuda / 1024 * static_cast<double>(all_.count_of(deed::plain));
    now[device_kib] = relaxed([this] { return device_kib_now(devices_); });
    now[thread_count] = of_process("Threads:");
    for (auto const& done : all_.done) now[operations] += static_cast<double>(done.load());
    double* to = &now[latencies];
    for (latency* const each : {&all_.claims, &all_.launches, &all_.retirements})
      to = std::ranges::copy(each->take(), to).out;
    taken_.push_back(now);
  }

  /// How fast a value rises over the second half of the run, per minute: the slope of a line
  /// through the lowest values of ten equal parts. What is in flight comes and goes, and a leak
  /// raises the lowest values too.
  [[nodiscard]] double rise_per_minute(column value) const {
    constexpr std::size_t parts = 10;
    std::size_t const begin = taken_.size() / 2;
    std::vector<std::array<double, 2>> points;  // minutes, value
    for (std::size_t part = 0; part < parts; ++part) {
      std::size_t const from = begin + (taken_.size() - begin) * part / parts;
      std::size_t const to = begin + (taken_.size() - begin) * (part + 1) / parts;
      if (from == to) continue;
      double low = taken_[from][value];
      for (std::size_t i = from; i < to; ++i) low = std::min(low, taken_[i][value]);
      points.push_back({(taken_[from][seconds] + taken_[to - 1][seconds]) / 120, low});
    }
    return slope(points);
  }
  /// In the second half.
  [[nodiscard]] double operations_per_minute() const {
    auto const& from = taken_[taken_.size() / 2];
    auto const& to = taken_.back();
    return (to[operations] - from[operations]) / (to[seconds] - from[seconds]) * 60;
  }
  /// Over quarter `quarter` of the run.
  [[nodiscard]] double median(std::size_t quarter, std::size_t value) const {
    std::vector<double> values;
    for (std::size_t i = taken_.size() * quarter / 4; i < taken_.size() * (quarter + 1) / 4; ++i)
      values.push_back(taken_[i][value]);
    auto const middle = values.begin() + static_cast<long>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
  }
  /// With some twelve of all lines.
  [[nodiscard]] std::string table() const {
    std::ostringstream out;
    out.precision(4);
    for (char const* const each : names) out << each << " | ";
    std::size_t const step = std::max<std::size_t>(1, taken_.size() / 12);
    for (std::size_t row = step - 1; row < taken_.size(); row += step) {
      out << '\n';
      for (double const each : taken_[row]) out << each << " | ";
    }
    return out.str();
  }

  double const left_by_cuda = bytes_left_by_a_plain_exec();  // which is not memory in use

 private:
  load_arena& all_;
  int devices_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<std::array<double, columns>> taken_;
};

/// A run, and what is wrong with it.
class long_run {
 public:
  long_run(std::string const& name, double seconds_max, bool leaks)
      : report(name), seconds_(seconds_max), device_before_(device_kib_now(devices_)) {
    all_->leaks = leaks;
    for (int device = 0; device < devices_; ++device)
      sites_.push_back(std::make_unique<site>(device, *all_));
    measured_.emplace(*all_, seconds_max, devices_);
    run_loads();
    settle();
    if (!failures.empty()) return;
    tell();
    judge_memory();
    judge_latency();
    all_.reset();
#ifdef ESCROW_TEST_RUNTIME_SIM
    for (int device = 0; device < devices_; ++device) {
      static_cast<void>(trim_device_memory(device));
    }
    require(wait_until(&is_nothing_left), "the runtime has handles left");
#endif
  }

  figures report;
  std::vector<std::string> failures;

 private:
  void require(bool holds, std::string what) {
    if (!holds) failures.push_back(std::move(what));
  }

  [[nodiscard]] static int device_count() {
    int count = 0;
    must(cudaGetDeviceCount(&count));
    return count;
  }

  // All loads, or those that ESCROW_LOADS names: each on each device, or on one of them where there
  // are few cores.
  [[nodiscard]] std::vector<std::unique_ptr<loader>> make_loaders() {
    char const* const chosen_names = std::getenv("ESCROW_LOADS");
    std::vector<loader::load> chosen;
    for (auto const& [name, its] : all_loads) {
      if (chosen_names == nullptr || std::strstr(chosen_names, name) != nullptr)
        chosen.push_back(its);
    }
    if (chosen.empty()) throw std::invalid_argument("ESCROW_LOADS names no load");
    bool const has_cores = std::thread::hardware_concurrency() >= chosen.size() * sites_.size();
    std::vector<std::unique_ptr<loader>> made;
    for (std::size_t i = 0; i < chosen.size() * (has_cores ? sites_.size() : 1); ++i) {
      site& here = *sites_[i % sites_.size()];
      must(cudaSetDevice(here.device));
      made.push_back(std::make_unique<loader>(*all_, here, i + 1, chosen[i % chosen.size()]));
    }
    return made;
  }

  void run_loads() {
    auto const loaders = make_loaders();
    std::vector<std::jthread> threads;
    for (auto const& each : loaders) threads.emplace_back([&each] { each->run_on_device(); });
    auto const interval = std::chrono::duration<double>(std::clamp(seconds_ / 100, 0.05, 1.0));
    auto const begin = std::chrono::steady_clock::now();
    for (int i = 1; i * interval.count() <= seconds_ && !all_->counts.stop; ++i) {
      std::this_thread::sleep_until(
          begin + std::chrono::duration_cast<std::chrono::nanoseconds>(i * interval));
      measured_->take();
    }
    all_->counts.stop.store(true, std::memory_order_relaxed);
  }

  // Everything comes back, and the books balance.
  void settle() {
    constexpr std::chrono::seconds bound{30};
    for (auto const& each : sites_) {
      must(cudaSetDevice(each->device));
      must(cudaDeviceSynchronize());
      static_cast<void>(each->pool.close_for(bound));
      static_cast<void>(each->scratch.close_for(bound));
    }
    sites_.clear();
    for (deleter* const each : {&all_->worker, &all_->freer}) {
      require(each->stop_for(bound), "a deleter does not stop");
      deleter_stats const left = each->stats();
      require(left.pending + left.in_graphs + left.leaked + left.errors == 0, to_json(left));
    }
    auto const is_balanced = [this] {
      return all_->counts.are_owners_destroyed() && graph_registry::global().is_empty();
    };
    require(wait_until(is_balanced, bound), "objects are left");
    require(all_->failed().empty(), all_->failed());
  }

#ifdef ESCROW_TEST_RUNTIME_SIM
  // But for idle events, and a few streams, which are kept for the next that need one.
  [[nodiscard]] static bool is_nothing_left() {
    sim::counts left = sim::alive();
    left.events = 0;
    if (left.streams <= 16) left.streams = 0;
    return left == sim::counts{};
  }
#endif

  void tell() {
    std::printf("%s\n", measured_->table().c_str());
    report.add("seconds", seconds_);
    report.add("seed", setting("ESCROW_STRESS_SEED", 1));
    report.add("devices", devices_);
    for (std::size_t i = 0; i < deeds; ++i) report.add(deed_names[i], all_->done[i].load());
    report.add("CUDA leaves of each plain exec, bytes", measured_->left_by_cuda);
    report.add("objects made", all_->counts.made.load());
    report.add("objects destroyed", all_->counts.destroyed.load());
    report.add("reclaimed by the worker", all_->worker.stats().reclaimed);
    report.add("device memory more than before, KiB", device_kib_now(devices_) - device_before_);
  }

  void judge_memory() {
    struct bound {
      std::string name;
      column value;
      double long_max;
    };
    bool const is_long = seconds_ >= long_enough;
    for (bound const& each :
         {bound{"host memory in use", heap_kib, host_kib_max},
          bound{"resident memory", rss_kib, rss_kib_max},
          bound{"device memory", device_kib, device_kib_max}, bound{"threads", thread_count, 5}}) {
      double const rise = measured_->rise_per_minute(each.value);
      bool const is_of_memory = each.value != thread_count;
      std::string const unit = is_of_memory ? "KiB/min" : "/min";
      report.add(each.name + " rises by, " + unit, rise);
      if (is_sanitized || (!is_long && !is_of_memory))
        continue;  // a sanitizer keeps what was freed
      double const allowed = is_long ? each.long_max / (seconds_ / 2 / 60)
                                     : measured_->operations_per_minute() * short_bytes_max / 1024;
      report.add(each.name + " may rise by, " + unit, allowed);
      require(rise <= allowed, each.name + " rises by " + std::to_string(rise) +
                                   "/min, more than " + std::to_string(allowed));
    }
  }

  void judge_latency() {
    for (std::size_t i = latencies; i < columns; ++i) {
      // The first quarter is for warming up.
      double const early = measured_->median(1, i);
      double const late = measured_->median(3, i);
      std::string const name = names[i];
      report.add(name + ", early", early);
      report.add(name + ", late", late);
      double const factor = (i - latencies) % 2 == 0 ? p50_factor_max : p99_factor_max;
      if (seconds_ < long_enough || is_sanitized) continue;
      require(late <= early * factor, name + " grew more than " + std::to_string(factor) +
                                          " times: " + std::to_string(late));
    }
  }

  double const seconds_;
  int const devices_ = device_count();
  double const device_before_;
  std::unique_ptr<load_arena> all_ = std::make_unique<load_arena>();
  std::vector<std::unique_ptr<site>> sites_;
  std::optional<samples> measured_;
};

TEST(LongRun, LeavesNothingAndNeitherMemoryNorLatencyCreepsUp) {
  long_run const it("long_run", setting("ESCROW_SECONDS", deep_size(5.0, 600.0)), false);
  for (std::string const& each : it.failures) ADD_FAILURE() << each;
  it.report.write();
}

// 100 bytes at each operation.
TEST(LongRun, NoticesALeak) {
  if (is_sanitized) GTEST_SKIP() << "the sanitizer would see it";
  long_run const it("long_run_that_leaks", 5, true);
  EXPECT_TRUE(std::ranges::any_of(it.failures, [](std::string const& each) {
    return each.starts_with("host memory in use rises");
  }));
}

}  // namespace
}  // namespace escrow::test
