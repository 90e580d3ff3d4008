// SPDX-License-Identifier: Apache-2.0
// Libraries and their kernels.
#include "libraries.hpp"

#include <escrow/sim/library.hpp>

namespace escrow::sim::model {

std::shared_ptr<CUlib_st> find_library(cudaLibrary_t handle) {
  auto const found = the().libraries.find(handle);
  return found == the().libraries.end() ? nullptr : found->second;
}

std::shared_ptr<CUlib_st> load_library(void const* code) {
  auto& s = the();
  auto const image = s.images.find(code);
  auto library = std::make_shared<CUlib_st>();
  library->is_code = image != s.images.end();
  s.libraries.emplace(library.get(), library);
  if (!library->is_code) return library;
  for (auto const& each : image->second) {
    auto loaded = std::make_shared<CUkern_st>(CUkern_st{each});
    loaded->code.address = loaded.get();
    loaded->code.of_library = true;
    library->kernels.push_back(loaded);
    s.library_kernels.emplace(loaded.get(), loaded);
  }
  return library;
}

void unload_library(CUlib_st& library) {
  for (auto const& each : library.kernels) each->code.unloaded = true;
  the().libraries.erase(&library);
}

bool comes_too_late(op const& o) {
  auto const* const launch = std::get_if<kernel_work>(&o.what);
  return launch != nullptr && launch->code->unloaded;
}

}  // namespace escrow::sim::model

namespace escrow::sim {

library_image::library_image() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.images[this] = {};
}

library_image::~library_image() {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.images.erase(this);
  std::erase_if(s.image_files, [&](auto const& file) { return file.second == this; });
}

void library_image::add(std::string name, kernel fn, std::vector<std::size_t> arg_sizes) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.images.at(this).push_back({nullptr, fn, std::move(arg_sizes), std::move(name)});
}

void library_image::provide_as_file(std::string name) const {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.image_files[std::move(name)] = this;
}

}  // namespace escrow::sim
