// SPDX-License-Identifier: Apache-2.0
// The launcher's thread and stream, and the record at its end.
#include "escrow/graph/graph_exec.hpp"

#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "exec_state.hpp"

namespace escrow::inline v0_2 {

namespace {

constexpr char const* creating_launcher = "stream_launcher::stream_launcher";

void refuse_if_capturing(char const* call, stream_ref stream) {
  refuse_capturing(call, stream, "call it before the capture begins, or after it has ended",
                   "the launcher's stream");
}

}  // namespace

stream_launcher::stream_launcher(graph_exec&& exec, stream_ref stream, source_location where)
    : stream_(stream),
      id_(detail::called_at(creating_launcher, where,
                            [&]() -> std::uint64_t {
                              static_cast<void>(exec.require(creating_launcher));
                              refuse_if_capturing(creating_launcher, stream);
                              return is_ambiguous(stream.get()) ? 0 : stream_id(stream);
                            })),
      exec_(std::move(exec)) {}

stream_launcher& stream_launcher::operator=(stream_launcher&& other) noexcept {
  stream_launcher taken(std::move(other));
  std::swap(stream_, taken.stream_);
  std::swap(thread_, taken.thread_);
  std::swap(id_, taken.id_);
  std::swap(exec_, taken.exec_);
  return *this;
}

stream_launcher::~stream_launcher() {
  if (exec_.state_ == nullptr) return;
  graph_exec::state& its = *exec_.state_;
  for (int tries_left = 3; its.is_end_due() && tries_left != 0; --tries_left) {
    try {
      record("stream_launcher::~stream_launcher");
    } catch (std::exception const& failed) {
      if (tries_left == 1) its.give_up_due_end(failed);
    }
  }
}

void stream_launcher::launch(source_location where) {
  constexpr char const* call = "stream_launcher::launch";
  detail::called_at(call, where, [&] { require(call).launch(call, this, stream_, 1, id_); });
}

void stream_launcher::launch_many(std::size_t times, source_location where) {
  constexpr char const* call = "stream_launcher::launch_many";
  detail::called_at(call, where, [&] { require(call).launch(call, this, stream_, times, id_); });
}

void stream_launcher::flush(source_location where) {
  constexpr char const* call = "stream_launcher::flush";
  detail::called_at(call, where, [&] { record(call); });
}

graph_exec stream_launcher::release(source_location where) {
  constexpr char const* call = "stream_launcher::release";
  detail::called_at(call, where, [&] { record(call); });
  return std::move(exec_);
}

void stream_launcher::record(char const* call) {
  graph_exec::state& its = require(call);
  if (!its.is_end_due()) return;
  refuse_if_capturing(call, stream_);
  its.record_due_end(stream_);
}

graph_exec::state& stream_launcher::require(char const* call) const {
  if (exec_.state_ == nullptr) {
    throw usage_error(call, "the launcher was released or moved from",
                      "make another, or use the one that it was moved to");
  }
  graph_exec::state& its = *exec_.state_;
  if (thread_ == std::this_thread::get_id()) [[likely]]
    return its;
  throw usage_error(call, "the launcher is bound to another thread",
                    "call it on the thread that created the launcher; a launcher that ends on "
                    "another one, without flush() before, leaks what its graph holds");
}

}  // namespace escrow::inline v0_2
