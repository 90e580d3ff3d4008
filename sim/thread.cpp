// SPDX-License-Identifier: Apache-2.0
// What CUDA keeps for each host thread.
#include "thread.hpp"

#include "state.hpp"

#include <pthread.h>

#include <array>
#include <atomic>

namespace escrow::sim::model {
namespace {

std::uint64_t next_thread_number() {
  static std::atomic<std::uint64_t> last{0};
  // relaxed: the number only has to be unique; nothing is published with it.
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

thread_record::~thread_record() {
  if (default_streams.empty()) return;
  auto& s = the();
  std::lock_guard lock(s.mutex);
  if (epoch != s.epoch) return;
  for (auto const& [number_of_device, stream] : default_streams) {
    stream->closed = true;
    // A capture refers to its streams: one whose thread ends in a capture stays until reset().
    if (stream->pending == 0 && stream->capturing == nullptr) forget_stream(*stream);
  }
}

namespace {

thread_local thread_record* mine = nullptr;

// Runs behind the destructors of the thread's own objects, which may call CUDA.
pthread_key_t end_of_thread() {
  pthread_key_t key{};
  int const failure = pthread_key_create(&key, [](void* record) {
    mine = nullptr;
    delete static_cast<thread_record*>(record);
  });
  if (failure != 0) give_up("no key is left for what is known of threads");
  return key;
}

}  // namespace

thread_record& this_thread_unchecked() {
  if (mine == nullptr) {
    static pthread_key_t const key = end_of_thread();
    mine = new thread_record;
    static_cast<void>(pthread_setspecific(key, mine));
  }
  return *mine;
}

thread_record& this_thread() {
  auto& me = this_thread_unchecked();
  if (me.number == 0) me.number = next_thread_number();
  if (me.epoch != the().epoch) {
    me.epoch = the().epoch;
    me.device = 0;
    me.last_error = cudaSuccess;
    me.mode = cudaStreamCaptureModeGlobal;
    me.default_streams.clear();
  }
  return me;
}

std::string describe_this_thread() {
  std::array<char, 32> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return "thread " + std::to_string(this_thread_unchecked().number) + " (" + name.data() + ")";
}

}  // namespace escrow::sim::model
