// Launches of one exec on one stream, without an event record for each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <thread>

#include "escrow/api.hpp"
#include "escrow/core/stream.hpp"
#include "escrow/graph/graph_exec.hpp"

namespace escrow::inline v0_1 {

// What: owns an exec and launches it on one stream. Its launches are recorded together, by flush(),
//   release() or the destructor, so that each costs little more than a plain cudaGraphLaunch. Each
//   is recorded at once, as by graph_exec, for an exec with conditional nodes or of a
//   sharing_group, while another exec or hoisted::enter() shares with it what is written, and on
//   cudaStreamLegacy and cudaStreamPerThread, which depend on the current device. While launches
//   are not recorded, another exec (or hoisted) that shares a slot or a moved-in owner with this
//   one throws usage_error on any other stream: only the launcher's thread may record. After
//   flush(), or the launcher's next launch, it is ordered as after graph_exec::launch().
// Thread safety: bound to the thread that created it, also after a move. Any thread may destroy it
//   after flush() or release().
// Lifetime: the stream must outlive the launches until they are recorded. What the exec holds is
//   released after its last launch. If the destructor cannot record that, because it runs on
//   another thread or the stream is being captured, or because recording and waiting fail, it leaks
//   what the exec holds, reports that to deleter_options::on_error and counts it
//   (deleter_stats::leaked), and execs that share a slot or a moved-in owner throw cuda_error when
//   they are launched, from then on.
// Capture: as graph_exec. Call flush() before the stream is captured.
// Errors: usage_error on another thread, and after release() or a move; cuda_error.
// Example: docs/guides/graphs.md.
class ESCROW_API stream_launcher {
 public:
  // Takes the exec. Throws usage_error if that was moved from or the stream is being captured, and
  // cuda_error; then `exec` is unchanged.
  stream_launcher(graph_exec&& exec, stream_ref stream,
                  source_location where = source_location::current());
  stream_launcher(stream_launcher&& other) noexcept = default;
  stream_launcher& operator=(stream_launcher&& other) noexcept;
  ~stream_launcher();

  // Enqueues one run of the graph: graph_exec::launch(). Source: cudaGraphLaunch.
  void launch(source_location where = source_location::current());

  // Records the launches so far, if they are not recorded. If that fails, waits until they are
  // done. Throws usage_error if the stream is being captured; cuda_error if both fail. It can be
  // called again then.
  void flush(source_location where = source_location::current());

  // Gives the exec back, after flush(). If that throws, the launcher keeps the exec.
  [[nodiscard]] graph_exec release(source_location where = source_location::current());

 private:
  [[nodiscard]] graph_exec::state& require(char const* call) const;
  void record(char const* call);

  stream_ref stream_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::uint64_t id_;  // the stream's; 0: each launch is recorded
  graph_exec exec_;   // moved from: released, or this was
};

}  // namespace escrow::inline v0_1
