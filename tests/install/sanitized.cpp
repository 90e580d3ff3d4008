// SPDX-License-Identifier: Apache-2.0
// What a consumer's test does, under a sanitizer, with the library as it is installed.
#include <dlfcn.h>

#include <array>
#include <escrow/escrow.hpp>
#include <escrow/sim.hpp>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

struct owner {
  explicit owner(std::size_t count)
      : parts(count, "a text that has memory of its own, as it is long") {}
  std::vector<std::string> parts;
};

void use_everything(cudaStream_t stream) {
  escrow::scratch_pool scratch;
  escrow::resource_pool<owner> owners({.slots_max = 4}, [] { return owner(2); });
  for (int i = 0; i < 50; ++i) {
    escrow::deleter::global().retire(stream, std::make_unique<owner>(3));
    auto const shared = escrow::make_stream_shared<owner>(4);
    escrow::record_stream(shared, stream);
    shared->parts.emplace_back("written, then destroyed by the worker");
    owners.claim(stream)->parts.emplace_back("written by each user in turn");
    escrow::graph_exec exec(escrow::capture(stream, [&](escrow::stream_ref on) {
      auto const memory = scratch.claim<int>(on, 4);
      escrow::check(cudaMemsetAsync(memory.data(), 0, 16, on.get()), "cudaMemsetAsync");
    }));
    exec.launch(stream);
    escrow::graph const hoisted = escrow::capture(stream, [&](escrow::stream_ref on) {
      auto const memory = scratch.claim<int>(on, 4);
      escrow::check(cudaMemsetAsync(memory.data(), 0, 16, on.get()), "cudaMemsetAsync");
    });
    escrow::hoist(hoisted).release_after(stream);
    if (i % 8 == 0) std::this_thread::sleep_for(1ms);  // the worker is first
  }
  static_cast<void>(scratch.close_for(10s));
}

// Memory goes back to the device beside the worker, also because there is none.
void run_out_of_memory(cudaStream_t stream) {
  for (bool const fails : {false, true}) {
    escrow::scratch_pool pool;
    pool.claim(stream, 2000).release(stream);
    escrow::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    escrow::deleter::global().drain();
    static_cast<void>(pool.trim());
    std::this_thread::sleep_for(fails ? 1ms : 150ms);
    static_cast<void>(escrow::trim_device_memory(0));
    if (!fails) continue;
    escrow::sim::fail_call("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation, 1, 100);
    try {
      static_cast<void>(pool.claim(stream, 2000));
    } catch (std::exception const&) {  // there is none
    }
    escrow::sim::clear_faults();
  }
}

// Objects that threads share, which each thread may be the last to use.
void share(std::array<cudaStream_t, 4> const& streams) {
  escrow::resource_pool<owner> owners({.slots_max = 2}, [] { return owner(2); });
  auto recorded = escrow::make_stream_shared<owner>(4);
  auto retained = std::make_shared<owner>(3);
  std::mutex mutex;  // guards the parts of `recorded`
  std::vector<std::thread> threads;
  for (cudaStream_t const stream : streams) {
    threads.emplace_back([&mutex, &owners, stream, recorded, retained]() mutable {
      for (int i = 0; i < 5; ++i) {
        {
          std::lock_guard const lock(mutex);
          recorded->parts.emplace_back("written by each thread");
        }
        escrow::record_stream(recorded, stream);
        escrow::retain(stream, retained);
        if (auto const lease = owners.try_claim(stream)) {
          (*lease)->parts.emplace_back("a text that has memory of its own");
        }
        escrow::graph_exec exec(escrow::capture(stream, [&](escrow::stream_ref on) {
          escrow::retain(on, retained);
          escrow::retain(on, std::make_unique<owner>(3));
        }));
        exec.launch(stream);
      }
      recorded.reset();
      retained.reset();
    });
  }
  recorded.reset();
  retained.reset();
  for (std::thread& each : threads) each.join();
}

// What one thread at a time may use, on two.
void race(std::string const& with, std::array<cudaStream_t, 4> const& streams) {
  escrow::scratch_pool scratch;
  escrow::graph_exec exec(escrow::capture(
      streams[0], [](escrow::stream_ref on) { escrow::retain(on, std::make_unique<owner>(3)); }));
  escrow::scratch_claimer claims = scratch.on(streams[1]);
  auto const use = [&] {
    if (with == "exec") exec.launch(streams[0]);
    if (with == "claimer") static_cast<void>(claims.claim(256));
  };
  std::thread other(use);
  use();
  other.join();
}

// The simulator knows which functions there are, if it is a shared library.
bool refuses_faults_of_unknown_calls() {
  if (dlsym(RTLD_DEFAULT, "cudaMalloc") == nullptr) return true;
  try {
    escrow::sim::fail_call("cudaMallocFromPool", cudaErrorMemoryAllocation);
  } catch (std::invalid_argument const&) {
    escrow::sim::fail_call("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation);
    escrow::sim::clear_faults();
    return true;
  }
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  if (!refuses_faults_of_unknown_calls()) return 1;
  std::array<cudaStream_t, 4> streams{};
  for (cudaStream_t& each : streams) {
    escrow::check(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  if (count > 1) race(arguments[1], streams);
  if (count > 1) return 0;
  use_everything(streams[0]);
  run_out_of_memory(streams[0]);
  for (int i = 0; i < 10; ++i) share(streams);
  return escrow::deleter::global().drain_for(10s) ? 0 : 1;
}
