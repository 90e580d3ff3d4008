// SPDX-License-Identifier: Apache-2.0
// Operations: how work is put on a stream, waits for other work, starts and completes.
#pragma once

#include "state.hpp"

#include <span>

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these.

// An operation on `stream` that waits for nothing yet. link() what it follows, then release() it.
op_ptr make_op(std::shared_ptr<stream_state> const& stream, work what);
// `later` waits for `earlier`, unless that is null or done.
void link(op_ptr const& earlier, op_ptr const& later);
// Nothing more will be linked before `o`; it starts when what it waits for is done.
void release(op_ptr const& o);
// Links `o` behind the stream's last operation, and behind the legacy stream's as CUDA's implicit
// rule says.
void link_stream_order(op_ptr const& o);
// Puts `what` at the end of the stream, also behind `earlier`.
op_ptr submit(std::shared_ptr<stream_state> const& stream, work what,
              std::span<op_ptr const> earlier = {});

// Whether the call that enqueues it blocks until it is done: a copy from the device to pageable
// memory.
bool blocks_caller(work const& what);

// Marks `o` done and starts what waited for it alone.
void complete(op_ptr const& o);

// The last operations of all streams of a device; when these are done the device is idle.
std::vector<op_ptr> device_tails(int device);

// Hands an operation that may start now to whoever runs it (runner.cpp).
void begin(op_ptr const& o);

// Wakes the host threads that block on the model.
void notify();

}  // namespace escrow::sim::model
