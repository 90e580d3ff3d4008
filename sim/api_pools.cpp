// SPDX-License-Identifier: Apache-2.0
// Pools of device memory.
#include "api.hpp"
#include "captures.hpp"
#include "memory.hpp"

#include <algorithm>
#include <memory>
#include <string>

using namespace escrow::sim::model;  // What this file gives C names to.

namespace {

// `use` gets a pool that is alive. In a capture these calls are unsafe (measured).
template <class Use>
cudaError_t with_pool(char const* name, cudaMemPool_t pool, Use use, unsigned kind = ordinary) {
  return call(name, kind, [&](api_call& c) {
    if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
    auto const is_default = [pool](device const& each) { return &each.pool == pool; };
    bool const is_made = c.s.memory_pools.contains(pool) && !pool->is_destroyed;
    if (!is_made && std::ranges::none_of(c.s.devices, is_default)) {
      give_up(std::string(name) + ": the memory pool was destroyed");
    }
    return use(c);
  });
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return call(__func__, ordinary, [&](api_call& c) {
    if (pool == nullptr) return cudaErrorInvalidValue;
    if (device < 0 || device >= c.s.how.devices) return cudaErrorInvalidDevice;
    *pool = &c.s.devices[static_cast<std::size_t>(device)].pool;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaMemPoolCreate(cudaMemPool_t* pool, cudaMemPoolProps const* properties) {
  return call(__func__, ordinary, [&](api_call& c) {
    if (pool == nullptr || properties == nullptr) return cudaErrorInvalidValue;
    if (auto const error = forbid_unsafe(c); error != cudaSuccess) return error;
    auto const& where = properties->location;
    if (properties->allocType != cudaMemAllocationTypePinned ||
        where.type != cudaMemLocationTypeDevice || where.id < 0 || where.id >= c.s.how.devices) {
      return cudaErrorInvalidValue;
    }
    auto made = std::make_unique<CUmemPoolHandle_st>(CUmemPoolHandle_st{.device = where.id});
    *pool = made.get();
    c.s.memory_pools.emplace(*pool, std::move(made));
    return cudaSuccess;
  });
}

// Its memory stays until it is freed.
cudaError_t CUDARTAPI cudaMemPoolDestroy(cudaMemPool_t pool) {
  return with_pool(
      __func__, pool,
      [&](api_call& c) {
        if (!c.s.memory_pools.contains(pool)) return cudaErrorInvalidValue;
        trim(*pool, 0);
        pool->release_threshold = 0;
        pool->is_destroyed = true;
        if (pool->used == 0) c.s.memory_pools.erase(pool);
        return cudaSuccess;
      },
      frees);
}

cudaError_t CUDARTAPI cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t keep) {
  return with_pool(__func__, pool, [&](api_call&) {
    trim(*pool, keep);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which,
                                              void* value) {
  return with_pool(__func__, pool, [&](api_call&) {
    if (value == nullptr || which != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
    pool->release_threshold = *static_cast<std::uint64_t*>(value);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which,
                                              void* value) {
  return with_pool(__func__, pool, [&](api_call&) {
    if (value == nullptr) return cudaErrorInvalidValue;
    auto& told = *static_cast<std::uint64_t*>(value);
    if (which == cudaMemPoolAttrReleaseThreshold) {
      told = pool->release_threshold;
    } else if (which == cudaMemPoolAttrReservedMemCurrent) {
      told = pool->reserved;
    } else if (which == cudaMemPoolAttrUsedMemCurrent) {
      told = pool->used;
    } else {
      return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

// Every device can use another one's memory.
cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call(__func__, ordinary | without_context, [&](api_call& c) {
    auto const is_one = [&](int each) { return each >= 0 && each < c.s.how.devices; };
    if (can == nullptr || !is_one(device) || !is_one(peer)) return cudaErrorInvalidValue;
    *can = device != peer ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaMemPoolSetAccess(cudaMemPool_t pool, cudaMemAccessDesc const* of,
                                           std::size_t count) {
  return with_pool(__func__, pool, [&](api_call& c) {
    auto const is_right = [&](cudaMemAccessDesc const& each) {
      return each.location.type == cudaMemLocationTypeDevice && each.location.id >= 0 &&
             each.location.id < c.s.how.devices;
    };
    return of != nullptr && std::all_of(of, of + count, is_right) ? cudaSuccess
                                                                  : cudaErrorInvalidValue;
  });
}
}
