// SPDX-License-Identifier: Apache-2.0
// What CUDA keeps for each host thread.
#pragma once

#include "objects.hpp"

#include <array>
#include <cstddef>
#include <map>
#include <string>

namespace escrow::sim::model {

struct thread_record {
  std::uint64_t number = 0;
  std::uint64_t epoch = 0;
  int device = 0;  // the current one: that of the newest pushed context, or the chosen one
  int chosen_device = 0;
  std::array<int, 16> pushed{};  // the devices of contexts that the driver was given
  std::size_t pushed_count = 0;
  bool has_context = false;  // the runtime made one current, of the chosen device
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  // Inside a destructor or a host function; counts, because one can lead to another.
  int in_callback = 0;
  int reclaims = 0;  // calls of Escrow's that end what its user gave it
  // In a function of the driver that does what one of the runtime does.
  bool asks_driver = false;
  std::uint64_t eager_work = 0;  // how much it has put on streams that did not capture
  // Pinned memory of leases that its next launch of a kernel is given.
  std::vector<pinned_use> given;
  // The operation whose kernel body this thread is running.
  op* kernel = nullptr;
  // Behind this the owner was retired that this thread destroys; number 0: it destroys none.
  moment retired_behind{};
  // cudaStreamPerThread, by device.
  std::map<int, std::shared_ptr<stream_state>> default_streams;

  thread_record() = default;
  thread_record(thread_record const&) = delete;
  thread_record& operator=(thread_record const&) = delete;
  // Lets go of the thread's default streams; work pending on them still runs.
  ~thread_record();
};

// The calling thread's record. The state's mutex must be held, because a reset may have happened.
thread_record& this_thread();

// The calling thread's record, for members that only this thread touches.
thread_record& this_thread_unchecked();

// "thread 3 (name)".
std::string describe_this_thread();

}  // namespace escrow::sim::model
