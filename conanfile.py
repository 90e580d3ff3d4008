# SPDX-License-Identifier: Apache-2.0
"""Conan's recipe (packaging/README.md): the libraries, with Escrow's own files for find_package(escrow COMPONENTS ...)."""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir


class Escrow(ConanFile):
    name = "escrow"
    description = "Keeps GPU memory and objects alive until the last CUDA graph or stream that uses them has finished"
    license = "Apache-2.0"
    topics = ("cuda", "cuda-graphs", "memory-pool")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "simulated": [True, False]}
    default_options = {"shared": True, "simulated": True}
    exports_sources = ("CMakeLists.txt", "LICENSE", "NOTICE", "cmake/*", "include/*", "core/*", "deleter/*", "pool/*", "graph/*",
                       "nodes/*", "sim/*")

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "core/include/escrow/version.hpp"))
        self.version = ".".join(re.findall(r"#define ESCROW_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))

    def requirements(self):  # headers, of which Escrow's own include none
        self.requires("boost/[>=1.74 <2]", visible=False, libs=False, options={"header_only": True})

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("Escrow is for Linux on x86-64 and aarch64")
        if self.settings.get_safe("compiler.cppstd"):
            check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update({
            "ESCROW_BUILD_SIM": bool(self.options.simulated),
            "ESCROW_BUILD_TESTS": False,
            "ESCROW_BUILD_BENCH": False,
            "CMAKE_DISABLE_FIND_PACKAGE_Doxygen": True,
        })
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        rmdir(self, os.path.join(self.package_folder, "share"))
        for name in ("LICENSE", "NOTICE"):
            copy(self, name, self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):  # what Conan would generate knows neither components nor CUDA's headers
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "escrow")]
        libraries = os.listdir(os.path.join(self.package_folder, "lib"))
        self.cpp_info.libs = ["escrow"] if any(name.startswith("libescrow.") for name in libraries) else ["escrow_simulated"]
        self.cpp_info.system_libs = ["dl", "pthread"]
