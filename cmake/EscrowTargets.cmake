# What all targets of Escrow share: the language, the warnings, the sanitizers, and how a part is declared.

# Warnings are errors for our own code only: nothing here reaches a consumer.
function(escrow_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Werror>")
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
  add_compile_options($<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Og>)
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
endfunction()

# Compiles the target's sources with ranges for profilers: escrow/detail/profiler.hpp.
function(escrow_shows_nvtx target)
  target_compile_definitions(${target} PRIVATE ESCROW_NVTX)
  target_include_directories(${target} SYSTEM PRIVATE ${ESCROW_NVTX_INCLUDE_DIR})
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
endfunction()

# A part of the house: target escrow_<name>, alias escrow::<name>, its public headers a verified file set.
# It sees CUDA's headers and links no CUDA runtime: the program picks cudart or escrow::sim.
function(escrow_part name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_library(escrow_${name} STATIC ${arg_SOURCES})
  add_library(escrow::${name} ALIAS escrow_${name})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS include/*.hpp)
  target_sources(escrow_${name} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${headers})
  target_link_libraries(escrow_${name} PUBLIC CUDA::toolkit Threads::Threads ${arg_LINK})
  set_target_properties(escrow_${name} PROPERTIES
    EXPORT_NAME ${name}
    POSITION_INDEPENDENT_CODE ON
    VERIFY_INTERFACE_HEADER_SETS ON)
  escrow_compile_options(escrow_${name})
  if(ESCROW_NVTX)
    escrow_shows_nvtx(escrow_${name})
  endif()
  set_property(GLOBAL APPEND PROPERTY ESCROW_PARTS escrow_${name})
endfunction()
