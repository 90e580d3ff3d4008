// One blocking stream a device, made when it is first needed and leaked on purpose.
#include "legacy_stream_proxy.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/detail/device.hpp"
#include "escrow/detail/retry_cleanup.hpp"

namespace escrow {

namespace {

struct made_streams {
  std::mutex mutex;  // guards `streams`; held across no call of CUDA
  std::vector<std::pair<int, cudaStream_t>> streams;  // with their devices

  [[nodiscard]] cudaStream_t find(int device) const noexcept {
    auto const found = std::find_if(streams.begin(), streams.end(),
                                    [device](auto const& each) { return each.first == device; });
    return found == streams.end() ? nullptr : found->second;
  }
};

made_streams& all_made() {
  // Never destroyed: destroying streams at exit may fail.
  static made_streams& made = *new made_streams;
  return made;
}

// Adds `fresh`, unless another thread has added one for the device meanwhile; returns the one that
// is there.
cudaStream_t add(int device, cudaStream_t fresh) {
  made_streams& made = all_made();
  std::lock_guard const lock(made.mutex);
  if (cudaStream_t const other = made.find(device)) return other;
  made.streams.emplace_back(device, fresh);
  return fresh;
}

}  // namespace

cudaStream_t legacy_stream_proxy(int device) {
  {
    made_streams& made = all_made();
    std::lock_guard const lock(made.mutex);
    made.streams.reserve(made.streams.size() + 1);  // so that add() allocates nothing
    if (cudaStream_t const found = made.find(device)) return found;
  }
  device_scope const current(device);
  cudaStream_t fresh = nullptr;
  check(cudaStreamCreateWithFlags(&fresh, cudaStreamDefault), "cudaStreamCreateWithFlags");
  cudaStream_t const kept = add(device, fresh);
  if (kept != fresh) retry_cleanup([fresh] { return cudaStreamDestroy(fresh); });
  return kept;
}

}  // namespace escrow
