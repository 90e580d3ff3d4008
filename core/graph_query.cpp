// Reading a graph's id: from the driver if it can be asked, else from the graph's DOT text.
#include "escrow/detail/graph_query.hpp"

#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/ready_event.hpp"

namespace escrow {

namespace {

// A file without a name, in memory.
class memory_file {
 public:
  memory_file() noexcept : descriptor_(memfd_create("escrow", MFD_CLOEXEC)) {}
  memory_file(memory_file&&) = delete;
  ~memory_file() {
    if (is_open()) ::close(descriptor_);
  }

  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  // Its first bytes; empty if they cannot be read.
  template <std::size_t Size>
  [[nodiscard]] std::string_view head(std::array<char, Size>& buffer) const noexcept {
    ssize_t const count = ::pread(descriptor_, buffer.data(), buffer.size(), 0);
    return {buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
  }

 private:
  int descriptor_;
};

// Takes `expected` off the front of `text`.
bool skip(std::string_view& text, std::string_view expected) noexcept {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

// Takes a number off the front of `text`, and what has to come behind it.
bool read(std::string_view& text, std::uint64_t& number, std::string_view expected) noexcept {
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc{} && skip(text, expected);
}

std::optional<std::uint64_t> id_in_dot(std::string_view text) noexcept {
  std::uint64_t cluster = 0;
  std::uint64_t label = 0;
  bool const is_understood = skip(text, "digraph dot {\nsubgraph cluster_") &&
                             read(text, cluster, " {\nlabel=\"graph_") && read(text, label, "\"");
  if (!is_understood || cluster != label) return std::nullopt;
  return cluster;
}

std::optional<std::uint64_t> printed_id(cudaGraph_t graph) {
  memory_file const file;
  // The status of a print that cannot write. The last error is not ours, and stays.
  if (!file.is_open()) throw cuda_error(cudaErrorOperatingSystem, "cudaGraphDebugDotPrint");
  check(cudaGraphDebugDotPrint(graph, file.path().c_str(), 0), "cudaGraphDebugDotPrint");
  std::array<char, 128> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): read into
  return id_in_dot(file.head(buffer));
}

using graph_id_function = CUresult(CUDAAPI*)(CUgraph, unsigned*);

// cuGraphGetId, which CUDA 13.0's headers do not declare; null if the driver has none.
graph_id_function find_graph_id() noexcept {
  constexpr int since = 13010;
  // The version first: a lookup that fails would replace the caller's last error.
  int version = 0;
  if (!succeeded(cudaDriverGetVersion(&version)) || version < since) return nullptr;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cudaError_t const status =
      cudaGetDriverEntryPointByVersion("cuGraphGetId", &found, since, cudaEnableDefault, &result);
  return succeeded(status) ? reinterpret_cast<graph_id_function>(found) : nullptr;
}

int device_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

// cuGraphGetId answers with 32 bits, capture ids have 64. Its answer is taken for the id if both
// ways agreed on the first graph that was asked, and as long as no answer is near the end of its
// range; then, for the rest of the process, only the text is.
enum class driver_answers { unchecked, are_ids, are_not_ids };

}  // namespace

std::optional<std::uint64_t> graph_id_of(cudaGraph_t graph) {
  static graph_id_function const driver_id_of = find_graph_id();
  // Relaxed: it publishes nothing; a thread that reads an older value asks both ways.
  static constinit std::atomic<driver_answers> known{driver_answers::unchecked};
  constexpr unsigned answer_max = 1U << 31U;

  driver_answers const answers = known.load(std::memory_order_relaxed);
  if (driver_id_of == nullptr || answers == driver_answers::are_not_ids) return printed_id(graph);
  unsigned answer = 0;
  if (driver_id_of(graph, &answer) != CUDA_SUCCESS) return printed_id(graph);
  if (answers == driver_answers::are_ids && answer < answer_max) return answer;
  std::optional<std::uint64_t> const id = printed_id(graph);
  if (id == answer && answer < answer_max) {
    driver_answers expected = driver_answers::unchecked;  // are_not_ids stays
    known.compare_exchange_strong(expected, driver_answers::are_ids, std::memory_order_relaxed);
  } else {
    known.store(driver_answers::are_not_ids, std::memory_order_relaxed);
  }
  return id;
}

bool is_captured_on(stream_ref stream, int device) {
  // This handle names a stream of the current device, and another one of each other.
  if (stream.get() == cudaStreamPerThread) return current_device() == device;
  if (device_count() == 1) return true;
  if (!is_in_use(device)) return false;
  // Used by no other thread meanwhile: two captures that record one at the same time crash the
  // driver (measured). One after the other they may, also while both go on (measured).
  event probe = event_cache::take(device, event_use::captured);
  cudaError_t const status = cudaEventRecord(probe.get(), stream.get());
  if (status != cudaErrorInvalidResourceHandle) check(status, "cudaEventRecord");
  event_cache::put(device, std::move(probe), event_use::captured);
  return succeeded(status);
}

int device_of_capturing(stream_ref stream, std::uint64_t capture_id) {
  struct answer {
    std::uint64_t capture_id = 0;
    cudaStream_t stream = nullptr;
    int device = 0;
  };
  // What the calling thread found last: ids are never reused, and a stream keeps its device.
  thread_local std::array<answer, 32> answers{};
  thread_local std::size_t next = 0;
  if (stream.get() == cudaStreamPerThread) return current_device();
  auto const known = std::ranges::find_if(answers, [&](answer const& each) {
    return each.capture_id == capture_id && each.stream == stream.get();
  });
  if (known != answers.end()) {
    std::swap(*known, answers.front());  // likely the next one
    return answers.front().device;
  }
  int const current = current_device();
  int found = current;
  if (!is_captured_on(stream, current)) {
    int const count = device_count();
    found = 0;
    while (found < count && (found == current || !is_captured_on(stream, found))) ++found;
    if (found == count) throw cuda_error(cudaErrorInvalidResourceHandle, "cudaEventRecord");
  }
  answers[next++ % answers.size()] = {capture_id, stream.get(), found};
  return found;
}

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count != 0) check(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
  return nodes;
}

}  // namespace escrow
