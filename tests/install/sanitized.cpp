// What a consumer's test does, under a sanitizer, with the library as it is installed.
#include <escrow/escrow.hpp>
#include <memory>
#include <string>
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
  }
  static_cast<void>(scratch.close_for(10s));
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  escrow::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  use_everything(stream);
  return escrow::deleter::global().drain_for(10s) ? 0 : 1;
}
