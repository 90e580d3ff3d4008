// The forms of the same tiny kernels that are launched over and over.
#pragma once

#include "launches.hpp"

namespace escrow::bench {

// Lines of tiny kernels that run side by side.
struct shape {
  char const* name;  // as it stands in the names of benchmarks
  int branches;
  int kernels;  // in each of them
};

inline constexpr shape line_of_8{"kernels:8", 1, 8};

// The form of this name:
//   bare                 a graph that keeps nothing, instantiated and launched by plain CUDA calls;
//                        bare_again is the same
//   escrow               the capture claims a temporary; captured, instantiated and launched by
//                        Escrow. escrow_4096_objects also retires 4,096 owners
//   lazy                 the same graph in a stream_launcher: no launch is recorded
//   user_object          the bare graph with one user object, as CUDA's manual has it
using form_setup = relaunch_form(cudaStream_t stream, shape const& of);
[[nodiscard]] arm<form_setup> form_named(std::string_view name);

// Of the relaunch bench, in a file of its own.
void register_interference(settings const& how);

}  // namespace escrow::bench
