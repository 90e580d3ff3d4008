# SPDX-License-Identifier: Apache-2.0
# What all targets of Escrow share: the language, the warnings, the sanitizers; how a part is declared, and the libraries.

# Nothing of this but the language reaches a consumer.
function(escrow_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # CMake 3.25 does not know that nvcc 13 has C++20, and gives no option for CUDA_STANDARD 20.
  set(standard "$<TARGET_PROPERTY:CUDA_STANDARD>")
  target_compile_options(${target} INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<VERSION_LESS:${standard},21>>:-std=c++20>")
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow>"
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${ESCROW_WERROR}>>:-Werror>")
  # No path of who builds gets into a text or a binary. Of what contains the other, the later option counts.
  cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH source_dir)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${CMAKE_BINARY_DIR}=.;-ffile-prefix-map=${source_dir}/=>")
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  if(ESCROW_SANITIZE)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ESCROW_SANITIZE};-fno-omit-frame-pointer>")
    target_link_options(${target} PUBLIC -fsanitize=${ESCROW_SANITIZE})
  endif()
endfunction()

# For folders of tests, which take longer to optimise than to run; what they test is optimised. Where g++ optimises
# little, it takes an empty std::optional for one that was never set.
function(escrow_compile_as_tests)
  if(ESCROW_SANITIZE)
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-O0>)  # half the time; of g++'s hardly less
  endif()
  add_compile_options($<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Og>)
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
endfunction()

# Compiles the target's sources with ranges for profilers: escrow/internal/profiler.hpp.
function(escrow_shows_nvtx target)
  target_compile_definitions(${target} PRIVATE ESCROW_NVTX)
  target_include_directories(${target} SYSTEM PRIVATE ${ESCROW_NVTX_INCLUDE_DIR})
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
endfunction()

# A part of the house: target escrow_<name>, alias escrow::<name>, its public headers a verified file set. Tests link
# parts, users libraries. It sees CUDA's headers and links no CUDA runtime: the program picks cudart or escrow::sim.
function(escrow_part name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_library(escrow_${name} STATIC EXCLUDE_FROM_ALL ${arg_SOURCES})
  add_library(escrow::${name} ALIAS escrow_${name})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS include/*.hpp)
  target_sources(escrow_${name} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${headers})
  target_link_libraries(escrow_${name} PUBLIC CUDA::toolkit Threads::Threads ${arg_LINK})
  set_target_properties(escrow_${name} PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    VERIFY_INTERFACE_HEADER_SETS ON)
  escrow_compile_options(escrow_${name})
  if(ESCROW_NVTX)
    escrow_shows_nvtx(escrow_${name})
  endif()
  set_property(GLOBAL APPEND PROPERTY ESCROW_PARTS escrow_${name})
endfunction()

# escrow_library(target name LINK runtime PARTS parts...): escrow::<name>, all these parts in one library, so that no
# order of libraries matters to who links it. Shared, it exports what ESCROW_API says (and the simulated runtime).
function(escrow_library target name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "LINK;PARTS")
  list(TRANSFORM arg_PARTS PREPEND escrow_)
  list(TRANSFORM arg_PARTS REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(${target} ${objects})
  add_library(escrow::${name} ALIAS ${target})
  set(all ${PROJECT_SOURCE_DIR}/include)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${all} FILES ${all}/escrow/escrow.hpp)
  foreach(part IN LISTS arg_PARTS)
    get_target_property(folders ${part} HEADER_DIRS)
    get_target_property(headers ${part} HEADER_SET)
    list(FILTER headers EXCLUDE REGEX "/escrow/internal/")  # for the parts alone
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${folders} FILES ${headers})
  endforeach()
  target_link_libraries(${target} PUBLIC ${arg_LINK} Threads::Threads PRIVATE ${CMAKE_DL_LIBS})
  target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/escrow.map)
  # Before 1.0 a minor version may change the ABI.
  set(abi ${PROJECT_VERSION_MAJOR})
  if(abi EQUAL 0)
    set(abi 0.${PROJECT_VERSION_MINOR})
  endif()
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name}
    LINKER_LANGUAGE CXX
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/escrow.map
    VERSION ${PROJECT_VERSION}
    SOVERSION ${abi})
  # CMake refuses a program that links two runtimes, where it sees both.
  set_target_properties(${target} PROPERTIES
    INTERFACE_LINK_ESCROW_OR_SIMULATED_BUT_NOT_BOTH ${name}
    COMPATIBLE_INTERFACE_STRING LINK_ESCROW_OR_SIMULATED_BUT_NOT_BOTH)
  if(NOT ESCROW_INSTALL)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  escrow_compile_options(${target})
  set_property(GLOBAL APPEND PROPERTY ESCROW_LIBRARIES ${target})
endfunction()
