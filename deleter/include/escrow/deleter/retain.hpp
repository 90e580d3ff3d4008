// Keeping something alive for the work of a stream, with the process's own deleter.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "escrow/core/stream.hpp"
#include "escrow/deleter/deleter.hpp"

namespace escrow {

// Keeps `owner` until the work enqueued on `stream` so far is done; in a capture, until the graph,
// its clones, execs and their launches are gone. A std::shared_ptr is copied, so that the object
// stays with whoever else shares it; what cannot be copied, a std::unique_ptr for one, is moved in.
// The share that is kept ends on the worker; if it is not the last one, the object ends where the
// last one does. Throws as deleter::retire(stream, owner). Any thread.
template <class Owner>
requires retirable<std::remove_cvref_t<Owner>> &&
    std::constructible_from<std::remove_cvref_t<Owner>, Owner>
void retain(stream_ref stream, Owner&& owner) {
  deleter::global().retire(stream, std::forward<Owner>(owner));
}

}  // namespace escrow
