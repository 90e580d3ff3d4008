// SPDX-License-Identifier: Apache-2.0
// main() of every bench program: defaults for Google Benchmark, what the numbers come from, and its
// exit status.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <utility>

#include "bench.hpp"
#include "kernels.hpp"

namespace escrow::bench {
namespace {

bool has_failed = false;

// Labels this repetition as failed, with the reason. Not SkipWithError(): Google Benchmark ends the
// program if one repetition has fewer iterations than another, and all results are lost.
void report_failure(benchmark::State& state, std::exception const& error) {
  has_failed = true;
  std::fprintf(stderr, "a benchmark failed: %s\n", error.what());
  state.SetLabel(std::string("FAILED: ") + error.what());
  if (state.iterations() == state.max_iterations) return;  // it failed behind its loop
  while (state.KeepRunning()) state.SetIterationTime(1e-9);
}

void add_context(settings const& how) {
  int runtime = 0;
  cudaDeviceProp properties{};
  test::must(cudaRuntimeGetVersion(&runtime));
  test::must(cudaGetDeviceProperties(&properties, 0));
  std::string driver = "none";
  std::ifstream module("/sys/module/nvidia/version");
  if (!how.is_simulated) std::getline(module, driver);
  benchmark::AddCustomContext("runtime", how.is_simulated ? "simulated" : "cuda");
  benchmark::AddCustomContext("cuda_runtime_version", std::to_string(runtime / 1000) + "." +
                                                          std::to_string(runtime % 1000 / 10));
  benchmark::AddCustomContext("driver", driver);
  benchmark::AddCustomContext("device", properties.name);
  benchmark::AddCustomContext("quick", how.is_quick ? "yes" : "no");
  if (how.is_simulated) std::fputs("*** SIMULATED: the program works, no more. ***\n", stderr);
}

int run(std::span<char* const> arguments) {
  settings how{.is_simulated = test::is_simulated(), .is_quick = test::is_simulated()};
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("This bench measures a GPU and found none. Without one, run its _sim.\n", stderr);
    return EXIT_FAILURE;
  }
  std::vector<std::string> users(arguments.begin() + 1, arguments.end());
  if (std::erase(users, "--quick") > 0) how.is_quick = true;
  // Our defaults first, so that the user's win.
  std::vector<std::string> texts{arguments[0], "--benchmark_enable_random_interleaving=true",
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
  bool const ran = benchmark::RunSpecifiedBenchmarks() != 0;
  benchmark::Shutdown();
  return ran && !has_failed ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

void add_benchmark(std::string const& name, times const& how_often,
                   std::function<void(benchmark::State&)> run) {
  auto* const added =
      benchmark::RegisterBenchmark(name.c_str(), [run = std::move(run)](benchmark::State& state) {
        try {
          run(state);
        } catch (std::exception const& error) {
          report_failure(state, error);
        }
      });
  added->Iterations(how_often.iterations)->UseManualTime()->Unit(how_often.unit);
  if (how_often.repetitions != 0) added->Repetitions(how_often.repetitions);
}

}  // namespace escrow::bench

int main(int argc, char** argv) {
  // A kernel that is loaded at its first launch would be timed with it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return escrow::bench::run({argv, static_cast<std::size_t>(argc)});
}
