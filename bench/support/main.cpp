// main() of every bench program: defaults for Google Benchmark, what the numbers come from, the
// time that a program may take, and its exit status.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "bench.hpp"
#include "kernels.hpp"

namespace escrow::bench {
namespace {

constexpr int skip_status = 77;  // what CTest takes for "skipped"

constexpr int time_limit_s = 95;  // more than any program needs, unless something is very wrong
clock::time_point time_begin;     // written before any benchmark runs

// Relaxed: a benchmark's threads have been joined when it is read.
std::atomic<bool> has_failed{false};

// Labels this repetition as failed, with the reason. Not SkipWithError(): Google Benchmark ends the
// program if one repetition has fewer iterations than another, and all results are lost.
void report_failure(benchmark::State& state, std::exception const& error) {
  has_failed.store(true, std::memory_order_relaxed);
  std::fprintf(stderr, "a benchmark failed: %s\n", error.what());
  state.SetLabel(std::string("FAILED: ") + error.what());
  if (state.iterations() == state.max_iterations) return;  // it failed behind its loop
  while (state.KeepRunning()) state.SetIterationTime(1e-9);
}

bool is_device_usable() {
  int count = 0;
  cudaError_t const status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return true;
  std::fprintf(stderr,
               "This bench measures a GPU and found none (%s: %s). Without one, run its _sim.\n",
               cudaGetErrorName(status), cudaGetErrorString(status));
  return false;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The kernel module's version, where the system tells it.
std::string driver_text(bool is_simulated) {
  if (is_simulated) return "none";
  std::ifstream file("/sys/module/nvidia/version");
  std::string text;
  if (std::getline(file, text)) return text;
  int version = 0;
  static_cast<void>(cudaDriverGetVersion(&version));
  return "for CUDA " + version_text(version);
}

void add_context(settings const& how) {
  int runtime = 0, device = 0;
  cudaDeviceProp properties{};
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  static_cast<void>(cudaGetDevice(&device));
  static_cast<void>(cudaGetDeviceProperties(&properties, device));
  benchmark::AddCustomContext("runtime", how.is_simulated ? "simulated" : "cuda");
  benchmark::AddCustomContext("cuda_runtime_version", version_text(runtime));
  benchmark::AddCustomContext("driver", driver_text(how.is_simulated));
  benchmark::AddCustomContext("device", properties.name);
  benchmark::AddCustomContext("quick", how.is_quick ? "yes" : "no");
  if (!how.is_simulated) return;
  std::fputs("*** SIMULATED: these numbers say that the program works, nothing else. ***\n",
             stderr);
}

int run(int argc, char** argv) {
  settings how{.is_simulated = test::is_simulated(), .is_quick = test::is_simulated()};
  if (!how.is_simulated && !is_device_usable()) return skip_status;
  auto const given = std::span(argv, static_cast<std::size_t>(argc)).subspan(1);
  std::vector<std::string> users(given.begin(), given.end());
  if (std::erase(users, "--quick") > 0) how.is_quick = true;
  // Our defaults first, so that the user's win.
  std::vector<std::string> texts{argv[0], "--benchmark_enable_random_interleaving=true",
                                 "--benchmark_display_aggregates_only=true",
                                 "--benchmark_repetitions=" + std::to_string(how.choose(11, 2))};
  texts.insert(texts.end(), users.begin(), users.end());
  std::vector<char*> pointers;
  for (std::string& each : texts) pointers.push_back(each.data());
  int count = static_cast<int>(pointers.size());
  add_context(how);
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return EXIT_FAILURE;
  register_all(how);
  time_begin = clock::now();
  bool const ran = benchmark::RunSpecifiedBenchmarks() != 0;
  benchmark::Shutdown();
  return ran && !has_failed.load(std::memory_order_relaxed) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

void add_benchmark(std::string const& name, times const& how_often,
                   std::function<void(benchmark::State&)> run) {
  auto* const added =
      benchmark::RegisterBenchmark(name.c_str(), [run = std::move(run)](benchmark::State& state) {
        try {
          require_time();
          run(state);
        } catch (std::exception const& error) {
          report_failure(state, error);
        }
      });
  added->Iterations(how_often.iterations)->UseManualTime()->Unit(how_often.unit);
  if (how_often.repetitions != 0) added->Repetitions(how_often.repetitions);
}

void require_time() {
  if (seconds_since(time_begin) < time_limit_s) return;
  // report.py knows the first words: what was measured before stays good.
  throw std::runtime_error("out of time: the program's " + std::to_string(time_limit_s) +
                           " s are over");
}

}  // namespace escrow::bench

int main(int argc, char** argv) {
  // A kernel that is loaded at its first launch would be timed with it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return escrow::bench::run(argc, argv);
}
