// Reads a graph's id from the driver, or else from the graph's DOT text.
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

namespace escrow::inline v0_1 {

namespace {

// An unnamed file in memory.
class memory_file {
 public:
  memory_file() noexcept : descriptor_(memfd_create("escrow", MFD_CLOEXEC)) {}
  memory_file(memory_file&&) = delete;
  ~memory_file() {
    if (is_open()) ::close(descriptor_);
  }

  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  // The first bytes; empty if reading fails.
  template <std::size_t Size>
  [[nodiscard]] std::string_view head(std::array<char, Size>& buffer) const noexcept {
    ssize_t const count = ::pread(descriptor_, buffer.data(), buffer.size(), 0);
    return {buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
  }

 private:
  int descriptor_;
};

// Removes `expected` from the front of `text`.
bool skip(std::string_view& text, std::string_view expected) noexcept {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

// Removes a number, and then `expected`, from the front of `text`.
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
  // CUDA's status for an unwritable file. The caller's last error is not touched.
  if (!file.is_open()) throw cuda_error(cudaErrorOperatingSystem, "cudaGraphDebugDotPrint");
  check(cudaGraphDebugDotPrint(graph, file.path().c_str(), 0), "cudaGraphDebugDotPrint");
  std::array<char, 128> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): read into
  return id_in_dot(file.head(buffer));
}

using graph_id_function = CUresult(CUDAAPI*)(CUgraph, unsigned*);

// cuGraphGetId, which the headers of CUDA 13.0 do not declare; null if the driver lacks it.
graph_id_function find_graph_id() noexcept {
  constexpr int since = 13010;
  // The version first: a failed lookup would replace the caller's last error.
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

// cuGraphGetId returns 32 bits, capture ids have 64. It is trusted if both methods agree on the
// first graph, and while its results stay below `answer_max`. After that only the text is used.
enum class driver_answers { unchecked, are_ids, are_not_ids };

}  // namespace

std::optional<std::uint64_t> graph_id_of(cudaGraph_t graph) {
  static graph_id_function const driver_id_of = find_graph_id();
  // Relaxed: it publishes nothing; a thread that reads an older value uses both methods.
  static constinit std::atomic<driver_answers> known{driver_answers::unchecked};
  constexpr unsigned answer_max = 1U << 31U;

  driver_answers const answers = known.load(std::memory_order_relaxed);
  if (driver_id_of == nullptr || answers == driver_answers::are_not_ids) return printed_id(graph);
  unsigned answer = 0;
  if (driver_id_of(graph, &answer) != CUDA_SUCCESS) return printed_id(graph);
  if (answers == driver_answers::are_ids && answer < answer_max) return answer;
  std::optional<std::uint64_t> const id = printed_id(graph);
  if (id == answer && answer < answer_max) {
    driver_answers expected = driver_answers::unchecked;  // keeps are_not_ids
    known.compare_exchange_strong(expected, driver_answers::are_ids, std::memory_order_relaxed);
  } else {
    known.store(driver_answers::are_not_ids, std::memory_order_relaxed);
  }
  return id;
}

bool is_captured_on(stream_ref stream, int device) {
  // This handle names a different stream on each device.
  if (stream.get() == cudaStreamPerThread) return current_device() == device;
  if (device_count() == 1) return true;
  if (!is_in_use(device)) return false;
  // One event per probe: two captures that record one event concurrently crash the driver
  // (measured). Sequential records are safe, also while both captures are active (measured).
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
  // Recent results of this thread. Ids are never reused, and a stream never changes its device.
  thread_local std::array<answer, 32> answers{};
  thread_local std::size_t next = 0;
  if (stream.get() == cudaStreamPerThread) return current_device();
  auto const known = std::ranges::find_if(answers, [&](answer const& each) {
    return each.capture_id == capture_id && each.stream == stream.get();
  });
  if (known != answers.end()) {
    std::swap(*known, answers.front());  // likely queried next
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

}  // namespace escrow::inline v0_1
