// SPDX-License-Identifier: Apache-2.0
// Operations: how work is put on a stream, waits for other work, starts and completes.
#include "ops.hpp"

#include "uses.hpp"

namespace escrow::sim::model {
namespace {

// Starts what may start. Completing one operation can make others startable; the loop, not
// recursion, takes those on.
void pump() {
  auto& s = the();
  if (s.pumping) return;
  s.pumping = true;
  while (!s.startable.empty()) {
    auto batch = std::move(s.startable);
    s.startable.clear();
    for (auto const& o : batch) begin(o);
  }
  s.pumping = false;
}

void count_down(op_ptr const& o) {
  if (--o->waiting_on == 0) the().startable.push_back(o);
}

void leave_stream(op_ptr const& o) {
  auto const stream = std::move(o->stream);
  if (stream->tail == o) stream->tail = nullptr;
  if (--stream->pending == 0 && stream->closed) forget_stream(*stream);
}

}  // namespace

op_ptr make_op(std::shared_ptr<stream_state> const& stream, work what) {
  auto o = std::make_shared<op>();
  o->stream = stream;
  o->what = std::move(what);
  ++stream->pending;
  ++the().pending_ops;
  return o;
}

void link(op_ptr const& earlier, op_ptr const& later) {
  if (earlier == nullptr || earlier->done) return;
  earlier->after.push_back(later);
  ++later->waiting_on;
}

void release(op_ptr const& o) {
  count_down(o);
  pump();
}

void link_stream_order(op_ptr const& o) {
  auto& d = the().devices[static_cast<std::size_t>(o->stream->device)];
  link(o->stream->tail, o);
  if (o->stream->legacy) {
    for (auto const& [id, other] : d.streams) {
      if (other->blocking()) link(other->tail, o);
    }
  } else if (o->stream->blocking()) {
    link(d.legacy->tail, o);
  }
}

op_ptr submit(std::shared_ptr<stream_state> const& stream, work what,
              std::span<op_ptr const> earlier) {
  auto o = make_op(stream, std::move(what));
  link_stream_order(o);
  for (auto const& e : earlier) link(e, o);
  stream->tail = o;
  release(o);
  return o;
}

bool blocks_caller(work const& what) {
  auto const* const copy = std::get_if<copy_work>(&what);
  return copy != nullptr && copy->to.type == cudaMemoryTypeUnregistered &&
         copy->from.type == cudaMemoryTypeDevice;
}

void complete(op_ptr const& o) {
  auto& s = the();
  o->done = true;
  o->done_at = time_now();
  if (!o->uses.empty()) forget_uses(*o);
  o->what = empty_work{};
  --s.pending_ops;
  leave_stream(o);
  if (auto const finished = std::move(o->finished)) finished();
  for (auto const& later : o->after) count_down(later);
  o->after.clear();
  pump();
  notify();
}

std::vector<op_ptr> device_tails(int device) {
  std::vector<op_ptr> tails;
  for (auto const& [id, stream] : the().devices[static_cast<std::size_t>(device)].streams) {
    if (stream->tail != nullptr) tails.push_back(stream->tail);
  }
  return tails;
}

void notify() {
  if (the().waiters != 0) the().changed.notify_all();
}

}  // namespace escrow::sim::model
