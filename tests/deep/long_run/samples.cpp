// Measuring a process: its memory, threads, rates and latencies, once a second.
#include "samples.hpp"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "plain_exec_leftover.hpp"

#ifdef ESCROW_TEST_RUNTIME_SIM
#include <escrow/sim.hpp>
#endif

namespace escrow::test {

namespace {

constexpr double kib = 1024;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double rss_kib_now() {
  std::ifstream file("/proc/self/statm");
  double total = 0;
  double resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / kib;
}

double threads_now() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Threads:", 0) == 0) return std::stod(line.substr(8));
  }
  return 0;
}

double events_now() {
#ifdef ESCROW_TEST_RUNTIME_SIM
  return static_cast<double>(sim::alive().events);
#else
  return 0;
#endif
}

// The slope of the line that fits best.
double slope(std::vector<double> const& x, std::vector<double> const& y) {
  double mean_x = 0;
  double mean_y = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    mean_x += x[i] / static_cast<double>(x.size());
    mean_y += y[i] / static_cast<double>(x.size());
  }
  double above = 0;
  double below = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    above += (x[i] - mean_x) * (y[i] - mean_y);
    below += (x[i] - mean_x) * (x[i] - mean_x);
  }
  return below == 0 ? 0 : above / below;
}

}  // namespace

double heap_kib_now() {
  struct mallinfo2 const found = mallinfo2();
  return static_cast<double>(found.uordblks + found.hblkhd) / kib;
}

double device_kib_now(std::size_t devices) {
  double used = 0;
  for (std::size_t device = 0; device < devices; ++device) {
    must(cudaSetDevice(static_cast<int>(device)));
    std::size_t free = 0;
    std::size_t total = 0;
    must(cudaMemGetInfo(&free, &total));
    used += static_cast<double>(total - free) / kib;
  }
  return used;
}

samples::samples(world& all, double seconds, std::size_t devices)
    : all_(all),
      devices_(devices),
      left_by_cuda_(bytes_left_by_a_plain_exec()),
      begin_(seconds_now()) {
  taken_.reserve(static_cast<std::size_t>(seconds * 10) + 100);  // measuring must not grow
}

void samples::take() {
  sample now;
  double const before = taken_.empty() ? 0 : taken_.back().seconds;
  now.seconds = seconds_now() - begin_;
  now.rss_kib = rss_kib_now();
  now.malloced_kib = heap_kib_now();
  now.heap_kib = now.malloced_kib - left_by_cuda_ / kib * all_.count_of(deed::plain);
  now.device_kib = relaxed([this] { return device_kib_now(devices_); });
  now.threads = threads_now();
  now.events = events_now();
  now.pending = static_cast<double>(all_.worker.stats().pending);
  for (std::size_t i = 0; i < deeds; ++i) {
    std::uint64_t const done = all_.done[i].load(std::memory_order_relaxed);
    now.per_second[i] =
        static_cast<double>(done - std::exchange(counted_[i], done)) / (now.seconds - before);
  }
  now.claim = all_.claims.take();
  now.launch = all_.launches.take();
  now.retire = all_.retirements.take();
  taken_.push_back(now);
}

double samples::rise_per_minute(double sample::*value) const {
  constexpr std::size_t parts = 10;
  std::size_t const begin = taken_.size() / 2;
  std::vector<double> minutes;
  std::vector<double> lowest;
  for (std::size_t part = 0; part < parts; ++part) {
    std::size_t const from = begin + (taken_.size() - begin) * part / parts;
    std::size_t const to = begin + (taken_.size() - begin) * (part + 1) / parts;
    if (from == to) continue;
    double low = taken_[from].*value;
    for (std::size_t i = from; i < to; ++i) low = std::min(low, taken_[i].*value);
    minutes.push_back((taken_[from].seconds + taken_[to - 1].seconds) / 120);
    lowest.push_back(low);
  }
  return slope(minutes, lowest);
}

double samples::operations_per_minute() const {
  double result = 0;
  std::size_t const begin = taken_.size() / 2;
  for (std::size_t i = begin; i < taken_.size(); ++i) {
    for (double const rate : taken_[i].per_second) result += rate * 60;
  }
  return taken_.size() == begin ? 0 : result / static_cast<double>(taken_.size() - begin);
}

double samples::median(std::size_t from, std::size_t to, quantiles sample::*latency,
                       double quantiles::*which) const {
  std::vector<double> values;
  for (std::size_t i = from; i < to; ++i) values.push_back(taken_[i].*latency.*which);
  if (values.empty()) return 0;
  std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
  return values[values.size() / 2];
}

samples::change samples::of(quantiles sample::*latency, double quantiles::*which) const {
  std::size_t const n = taken_.size();
  return {median(n / 4, n / 2, latency, which), median(n * 3 / 4, n, latency, which)};
}

std::string samples::json() const {
  std::ostringstream out;
  out.precision(7);
  out << "{\"columns\": [\"seconds\", \"rss_kib\", \"heap_kib\", \"device_kib\", \"threads\", "
         "\"events\", \"pending\"";
  for (char const* name : deed_names) out << ", \"" << name << "_per_s\"";
  for (char const* call : {"claim", "launch", "retire"}) {
    for (char const* which : {"p50", "p99", "p999"})
      out << ", \"" << call << '_' << which << "_us\"";
  }
  out << "],\n  \"rows\": [\n";
  for (sample const& each : taken_) {
    out << (&each == taken_.data() ? "    [" : ",\n    [") << each.seconds << ", " << each.rss_kib
        << ", " << each.heap_kib << ", " << each.device_kib << ", " << each.threads << ", "
        << each.events << ", " << each.pending;
    for (double const rate : each.per_second) out << ", " << rate;
    for (quantiles const& took : {each.claim, each.launch, each.retire}) {
      out << ", " << took.p50 << ", " << took.p99 << ", " << took.p999;
    }
    out << ']';
  }
  out << "\n  ]}";
  return out.str();
}

void samples::print_table() const {
  std::printf("%8s %10s %10s %12s %7s %9s %9s %9s %22s %22s\n", "s", "rss KiB", "heap KiB",
              "device KiB", "threads", "claims/s", "launch/s", "retire/s", "claim p50/p99/p999 us",
              "launch p50/p99/p999 us");
  std::size_t const step = std::max<std::size_t>(1, taken_.size() / 12);
  for (std::size_t i = step - 1; i < taken_.size(); i += step) {
    sample const& each = taken_[i];
    std::printf(
        "%8.1f %10.0f %10.0f %12.0f %7.0f %9.0f %9.0f %9.0f %8.2f %6.1f %6.0f %8.2f %6.1f %6.0f\n",
        each.seconds, each.rss_kib, each.heap_kib, each.device_kib, each.threads,
        each.per_second[static_cast<std::size_t>(deed::claim)],
        each.per_second[static_cast<std::size_t>(deed::launch)],
        each.per_second[static_cast<std::size_t>(deed::retire)], each.claim.p50, each.claim.p99,
        each.claim.p999, each.launch.p50, each.launch.p99, each.launch.p999);
  }
}

}  // namespace escrow::test
