// SPDX-License-Identifier: Apache-2.0
// The functions of scratch_pool, scratch_claimer and scratch_pools.
#include "escrow/pool/scratch_pool.hpp"

#include <memory>

#include "escrow/core/error.hpp"
#include "escrow/internal/device.hpp"
#include "escrow/internal/used_alone.hpp"
#include "size_class.hpp"

namespace escrow::inline v0_2 {

slot_pool::owned scratch_pool::make_slots(pool_options const& options, scratch_policy const& policy,
                                          source_location where) {
  constexpr char const* call = "scratch_pool";
  if (!policy.source.allocate || !policy.source.free) {
    detail::refuse_at(where, call, "`policy.source` lacks a function",
                      "give both, allocate and free");
  }
  auto const functions = std::make_shared<slot_functions<device_block> const>();
  auto make = [functions, source = policy.source](size_class const& of, void* in_arena,
                                                  std::size_t bytes) {
    return std::make_unique<resource_of<device_block>>(*functions, [&] {
      return in_arena != nullptr ? device_block(in_arena, bytes)
                                 : device_block(of.bytes, source, {});  // the claim's line is told
    });
  };
  return detail::called_at(call, where,
                           [&] { return slot_pool::create(options, std::move(make), &policy); });
}

lease<device_block> scratch_pool::claim_as(char const* call, claim_kind kind, stream_ref stream,
                                           std::size_t bytes, source_location where,
                                           std::size_t used) {
  return lease<device_block>([&] {
    return slot_pool::of(slots_, call, where)
        .claim_bytes({.call = call,
                      .stream = stream,
                      .where = where,
                      .bytes = bytes,
                      .kind = kind,
                      .used = used});
  });
}

scratch_claimer scratch_pool::on(stream_ref stream, source_location where) {
  return {slot_pool::of(slots_, "scratch_pool::on", where), stream, where};
}

scratch_claimer::scratch_claimer(slot_pool& pool, stream_ref stream, source_location where)
    : stream_(stream.get()) {
  sizes_.try_emplace(scratch_pool::bytes_min, "scratch_pool::on", pool, stream, where);
}

claimer_slots& scratch_claimer::of(char const* call, std::size_t bytes, source_location where) {
  tell_used_alone(this, call);
  auto const known = sizes_.find(scratch_pool::block_bytes(bytes));
  if (known != sizes_.end()) [[likely]]
    return known->second;
  if (sizes_.empty()) claimer_slots::refuse_moved_from(call);
  slot_pool& pool = sizes_.begin()->second.require_pool(call);
  device_scope const current(pool.device());  // the null stream is the current device's
  claimer_slots made(call, pool, stream_, where, bytes);
  return sizes_.try_emplace(scratch_pool::block_bytes(bytes), std::move(made)).first->second;
}

lease<device_block> scratch_claimer::claim_as(char const* call, claim_kind kind, std::size_t bytes,
                                              source_location where, std::size_t used) {
  return lease<device_block>([&] {
    return detail::called_at(call, where, [&] {
      return of(call, bytes, where).claim(call, where, {}, bytes, kind, used);
    });
  });
}

void scratch_claimer::flush(source_location where) {
  constexpr char const* call = "scratch_claimer::flush";
  detail::called_at(call, where, [&] {
    if (sizes_.empty()) claimer_slots::refuse_moved_from(call);
    for (auto& [size, claims] : sizes_) claims.flush(call, where);
  });
}

std::size_t scratch_pools::device_count(source_location where) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount", where);
  return static_cast<std::size_t>(devices);
}

scratch_pool& scratch_pools::on(int device, source_location where) {
  constexpr char const* call = "scratch_pools::on";
  detail::called_at(call, where, [&] {
    if (places_.empty()) {
      throw usage_error(call, "the pools were moved from", "use those that they were moved to");
    }
    slot_pool::require_device("`device`", device, static_cast<int>(places_.size()));
  });
  return places_[static_cast<std::size_t>(device)].get([&](auto& place) {
    pool_options chosen = options_;
    chosen.device = device;
    place.emplace(chosen, policy_, where);
  });
}

}  // namespace escrow::inline v0_2
