// SPDX-License-Identifier: Apache-2.0
// Code that the simulated runtime loads as a library: named host functions in a cubin's place.
#pragma once

#include <escrow/sim/kernel.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace escrow::sim {

// What cudaLibraryLoadData takes here: give it code(). Loading copies the kernels, so an image may
// end before the libraries made of it. Any thread. Outlives reset().
class library_image {
 public:
  library_image();
  library_image(library_image const&) = delete;
  library_image& operator=(library_image const&) = delete;
  ~library_image();

  // Adds a kernel; libraries loaded later have it.
  void add(std::string name, kernel fn, std::vector<std::size_t> arg_sizes);
  // Lets cudaLibraryLoadFromFile find the image under a file's name. No such file need exist.
  void provide_as_file(std::string name) const;
  [[nodiscard]] void const* code() const { return this; }
};

}  // namespace escrow::sim
