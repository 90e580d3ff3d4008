// SPDX-License-Identifier: Apache-2.0
// Operations: how work is put on a stream, waits for other work, starts and completes.
#pragma once

#include "state.hpp"

#include <span>

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these.

// The current call enqueues it. Whose call that is, is noted if ESCROW_AUDIT=1 or
// ESCROW_MEMORY=apart asks for it: it takes a while.
void note_call(op& enqueued);

// An operation on `stream` that waits for nothing yet. link() what it follows, then release() it.
op_ptr make_op(std::shared_ptr<stream_state> const& stream, work what, position at = {});
// `later` waits for `earlier`, unless that is null or done.
void link(op_ptr const& earlier, op_ptr const& later);
// Nothing more will be linked before `o`; it starts when what it waits for is done.
void release(op_ptr const& o);
// Links `o`, which the stream has next, behind its last operation, and behind the legacy stream's
// as CUDA's implicit rule says. Then behind others; then it takes its place.
void link_stream_order(op_ptr const& o);
void link_behind(op_ptr const& earlier, op_ptr const& o);
void take_place(op_ptr const& o);
// Puts `what` at the end of the stream, also behind `earlier`; release() it.
op_ptr append(std::shared_ptr<stream_state> const& stream, work what,
              std::span<op_ptr const> earlier = {});
// The same, and releases it.
op_ptr submit(std::shared_ptr<stream_state> const& stream, work what,
              std::span<op_ptr const> earlier = {});

// Whether the call that enqueues it blocks until it is done: a copy to or from pageable memory, if
// it is not staged, or within the host's.
bool blocks_caller(work const& what);
// A copy from pageable memory to the device is read in the call, if it is small.
void stage(work& what);
// The same of a launch's, up to the first one that blocks: what comes behind that is read later.
void stage(std::span<op_ptr const> launched);

// Marks `o` done and starts what waited for it alone.
void complete(op_ptr const& o);

// What is enqueued on streams so far. When the operations are done, the host knows it.
struct enqueued_work {
  std::vector<op_ptr> tails;  // those that are not done
  std::vector<position> places;

  void add(stream_state const& stream);
};
enqueued_work work_of_device(int device);
// The same of a stream; the legacy one stands for all blocking ones.
enqueued_work work_of(stream_state const& stream);
// The host has seen that it is done.
void learn(enqueued_work const& done);

// Hands an operation that may start now to whoever runs it (runner.cpp).
void begin(op_ptr const& o);

// Wakes the host threads that block on the model.
void notify();

}  // namespace escrow::sim::model
