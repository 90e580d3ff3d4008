// SPDX-License-Identifier: Apache-2.0
// Operations: how work is put on a stream, waits for other work, starts and completes.
#include "ops.hpp"

#include "apart.hpp"
#include "operands.hpp"

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

void note_call(op& enqueued) {
  enqueued.call = the().calls;
  if (asked_audits() == audits::all || is_memory_apart())
    enqueued.by = std::make_shared<callers const>(callers_here());
}

op_ptr make_op(std::shared_ptr<stream_state> const& stream, work what, position at) {
  auto o = std::make_shared<op>();
  o->at = std::move(at);
  o->stream = stream;
  o->what = std::move(what);
  begin_pinned_use(o->what);
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
  auto const follow = [&o](stream_state const& other) {
    link(other.tail, o);
    come_behind(o->stream->at, other.at, the().known_done);
  };
  link(o->stream->tail, o);
  if (o->stream->legacy) {
    for (auto const& [id, other] : d.streams) {
      if (other->blocking()) follow(*other);
    }
  } else if (o->stream->blocking()) {
    follow(*d.legacy);
  }
}

void link_behind(op_ptr const& earlier, op_ptr const& o) {
  if (earlier == nullptr) return;
  link(earlier, o);
  come_behind(o->stream->at, earlier->at, the().known_done);
}

void take_place(op_ptr const& o) {
  ++o->stream->at.own.number;
  o->at = o->stream->at;
}

op_ptr append(std::shared_ptr<stream_state> const& stream, work what,
              std::span<op_ptr const> earlier) {
  auto o = make_op(stream, std::move(what));
  note_call(*o);
  link_stream_order(o);
  for (auto const& e : earlier) link_behind(e, o);
  take_place(o);
  stream->tail = o;
  return o;
}

op_ptr submit(std::shared_ptr<stream_state> const& stream, work what,
              std::span<op_ptr const> earlier) {
  auto o = append(stream, std::move(what), earlier);
  release(o);
  return o;
}

bool blocks_caller(work const& what) {
  auto const* const copy = std::get_if<copy_work>(&what);
  if (copy == nullptr) return false;
  if (copy->to.type == cudaMemoryTypeDevice) return is_pageable(copy->from) && !copy->staged;
  return is_pageable(copy->to) || copy->from.type != cudaMemoryTypeDevice;
}

void stage(work& what) {
  auto* const copy = std::get_if<copy_work>(&what);
  if (copy == nullptr || copy->to.type != cudaMemoryTypeDevice) return;
  if (is_pageable(copy->from)) stage(*copy);
}

void stage(std::span<op_ptr const> launched) {
  for (auto const& each : launched) {
    stage(each->what);
    if (blocks_caller(each->what)) return;
  }
}

void complete(op_ptr const& o) {
  auto& s = the();
  o->done = true;
  o->done_at = time_now();
  end_pinned_use(o->what);
  o->what = empty_work{};
  --s.pending_ops;
  leave_stream(o);
  if (auto const finished = std::move(o->finished)) finished();
  for (auto const& later : o->after) count_down(later);
  o->after.clear();
  pump();
  notify();
}

void enqueued_work::add(stream_state const& stream) {
  if (stream.tail != nullptr) tails.push_back(stream.tail);
  places.push_back(stream.at);
}

enqueued_work work_of_device(int device) {
  enqueued_work all;
  for (auto const& [id, stream] : the().devices[static_cast<std::size_t>(device)].streams)
    all.add(*stream);
  return all;
}

enqueued_work work_of(stream_state const& stream) {
  enqueued_work all;
  all.add(stream);
  if (!stream.legacy) return all;
  for (auto const& [id, other] : the().devices[static_cast<std::size_t>(stream.device)].streams) {
    if (other->blocking()) all.add(*other);
  }
  return all;
}

void learn(enqueued_work const& done) {
  for (position const& each : done.places) the().known_done.learn(each);
}

void notify() {
  if (the().waiters != 0) the().changed.notify_all();
}

}  // namespace escrow::sim::model
