// SPDX-License-Identifier: Apache-2.0
// User objects: reference-counted owners that graphs keep alive.
#include "api.hpp"
#include "graphs.hpp"

using namespace escrow::sim::model;  // What this file gives C names to.

extern "C" {

cudaError_t CUDARTAPI cudaUserObjectCreate(cudaUserObject_t* out, void* argument,
                                           cudaHostFn_t destroy, unsigned int references,
                                           unsigned int flags) {
  return call(__func__, in_callbacks | outlives_fault | without_context, [&](api_call& c) {
    // CUDA insists on the flag: nobody can wait for the destructor.
    if (out == nullptr || destroy == nullptr || references == 0 ||
        flags != cudaUserObjectNoDestructorSync) {
      return cudaErrorInvalidValue;
    }
    auto object = std::make_unique<CUuserObject_st>(
        CUuserObject_st{++c.s.next_id, argument, destroy, references});
    *out = object.get();
    c.s.user_objects.emplace(*out, std::move(object));
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaUserObjectRetain(cudaUserObject_t handle, unsigned int count) {
  return call(__func__, in_callbacks | outlives_fault | without_context, [&](api_call&) {
    auto* const object = find_object(handle);
    if (object == nullptr || count == 0) return cudaErrorInvalidValue;
    object->references += count;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaUserObjectRelease(cudaUserObject_t handle, unsigned int count) {
  return call(__func__, in_callbacks | outlives_fault | without_context, [&](api_call& c) {
    auto const* const object = find_object(handle);
    if (object == nullptr || count == 0) return cudaErrorInvalidValue;
    let_go(handle, object->id, count, c.reclaimed);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t user_object,
                                                unsigned int count, unsigned int flags) {
  return call(__func__, outlives_fault, [&](api_call&) {
    auto const graph = find_graph(handle);
    auto* const object = find_object(user_object);
    if (graph == nullptr || object == nullptr || count == 0) return cudaErrorInvalidValue;
    if ((flags & ~unsigned{cudaGraphUserObjectMove}) != 0) return cudaErrorInvalidValue;
    retain(*graph, *object, count);
    // A move leaves the total as it is. CUDA does not check that the caller had that many to give.
    if ((flags & cudaGraphUserObjectMove) == 0) object->references += count;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphReleaseUserObject(cudaGraph_t handle, cudaUserObject_t user_object,
                                                 unsigned int count) {
  return call(__func__, outlives_fault, [&](api_call& c) {
    auto const graph = find_graph(handle);
    auto const* const object = find_object(user_object);
    if (graph == nullptr || object == nullptr || count == 0) return cudaErrorInvalidValue;
    // CUDA calls it a success if the graph does not hold the object, and takes the reference from
    // the object's total all the same; the graph gives it back when it is destroyed.
    auto const id = object->id;
    auto& held = graph->references[id];
    held.object = user_object;
    held.count -= count;
    if (held.count == 0) graph->references.erase(id);
    let_go(user_object, id, count, c.reclaimed);
    return cudaSuccess;
  });
}
}
