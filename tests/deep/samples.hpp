// What the long run measures each second: the process's memory and threads, rates and latencies.
#pragma once

#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "../stress/loads.hpp"

namespace escrow::test {

/// Memory in use on the heap, as malloc sees it.
[[nodiscard]] inline double heap_kib_now() {
  struct mallinfo2 const found = mallinfo2();
  return static_cast<double>(found.uordblks + found.hblkhd) / 1024;
}

/// Memory in use on all devices. Leaves the last one current.
[[nodiscard]] inline double device_kib_now(std::size_t devices) {
  double used = 0;
  for (std::size_t device = 0; device < devices; ++device) {
    must(cudaSetDevice(static_cast<int>(device)));
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
[[nodiscard]] inline double bytes_left_by_a_plain_exec() {
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

/// What is measured. Rates and latencies are of the time since the last sample.
enum column : std::size_t {
  seconds,
  rss_kib,
  malloced_kib,  // in use, as malloc sees it
  heap_kib,      // the same without what CUDA leaves of plain execs
  device_kib,    // in use on all devices
  thread_count,
  event_count,  // of the simulated runtime; 0 on a GPU, which does not tell
  pending,
  rates,
  latencies = rates + deeds,  // of each call: p50, p99, p99.9
  columns = latencies + 9
};
inline constexpr std::array measured_calls{"claim", "launch", "retire"};
inline constexpr std::array measured_quantiles{"p50", "p99", "p99.9"};

[[nodiscard]] inline std::string name_of(std::size_t which) {
  static constexpr std::array names{"s",          "rss KiB", "malloc KiB", "heap KiB",
                                    "device KiB", "threads", "events",     "pending"};
  if (which < rates) return names[which];
  if (which < latencies) return deed_names[which - rates] + std::string("/s");
  std::size_t const latency = which - latencies;
  return std::string(measured_calls[latency / 3]) + " " + measured_quantiles[latency % 3] + " us";
}

class samples {
 public:
  samples(load_arena& all, double seconds_max, std::size_t devices) : all_(all), devices_(devices) {
    taken_.reserve(static_cast<std::size_t>(seconds_max * 10) + 100);  // measuring must not grow
  }

  void take() {
    std::array<double, columns> now{};
    double const before = taken_.empty() ? 0 : taken_.back()[seconds];
    now[seconds] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    now[rss_kib] = of_process("VmRSS:");
    now[malloced_kib] = heap_kib_now();
    now[heap_kib] =
        now[malloced_kib] - left_by_cuda_ / 1024 * static_cast<double>(all_.count_of(deed::plain));
    now[device_kib] = relaxed([this] { return device_kib_now(devices_); });
    now[thread_count] = of_process("Threads:");
#ifdef ESCROW_TEST_RUNTIME_SIM
    now[event_count] = static_cast<double>(sim::alive().events);
#endif
    now[pending] = static_cast<double>(all_.worker.stats().pending);
    for (std::size_t i = 0; i < deeds; ++i) {
      std::uint64_t const done = all_.count_of(static_cast<deed>(i));
      now[rates + i] =
          static_cast<double>(done - std::exchange(counted_[i], done)) / (now[seconds] - before);
    }
    double* to = &now[latencies];
    for (latency* const each : {&all_.claims, &all_.launches, &all_.retirements}) {
      to = std::ranges::copy(each->take(), to).out;
    }
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
  /// Of all kinds of operations together, in the second half.
  [[nodiscard]] double operations_per_minute() const {
    std::size_t const n = taken_.size();
    double sum = 0;
    for (std::size_t i = n / 2; i < n; ++i) {
      sum = std::accumulate(&taken_[i][rates], &taken_[i][latencies], sum);
    }
    return n == 0 ? 0 : sum * 60 / static_cast<double>(n - n / 2);
  }
  /// The medians over the second and the last quarter: the first is for warming up.
  struct change {
    double early;
    double late;
  };
  [[nodiscard]] change of(std::size_t value) const {
    std::size_t const n = taken_.size();
    return {median(n / 4, n / 2, value), median(n * 3 / 4, n, value)};
  }

  /// What CUDA leaves of each plain exec, which does not count as memory in use.
  [[nodiscard]] double bytes_left_by_cuda() const noexcept {
    return left_by_cuda_;
  }

  /// With some twelve of all lines.
  [[nodiscard]] std::string table() const {
    std::ostringstream out;
    out.precision(4);
    for (std::size_t i = 0; i < columns; ++i) out << name_of(i) << " | ";
    std::size_t const step = std::max<std::size_t>(1, taken_.size() / 12);
    for (std::size_t row = step - 1; row < taken_.size(); row += step) {
      out << '\n';
      for (double const each : taken_[row]) out << each << " | ";
    }
    return out.str();
  }
  [[nodiscard]] std::size_t count() const noexcept {
    return taken_.size();
  }

 private:
  /// A line of /proc/self/status.
  [[nodiscard]] static double of_process(std::string const& name) {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(name)) return std::stod(line.substr(name.size()));
    }
    return 0;
  }
  /// Of the line that fits best.
  [[nodiscard]] static double slope(std::vector<std::array<double, 2>> const& points) {
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
  [[nodiscard]] double median(std::size_t from, std::size_t to, std::size_t value) const {
    std::vector<double> values;
    for (std::size_t i = from; i < to; ++i) values.push_back(taken_[i][value]);
    if (values.empty()) return 0;
    std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
    return values[values.size() / 2];
  }

  load_arena& all_;
  std::size_t devices_;
  double left_by_cuda_ = bytes_left_by_a_plain_exec();
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::array<std::uint64_t, deeds> counted_{};
  std::vector<std::array<double, columns>> taken_;
};

}  // namespace escrow::test
