# SPDX-License-Identifier: Apache-2.0
# How long a test may take, against hangs alone: under a sanitizer on a busy machine a second can become twenty.
set(escrow_test_seconds_max 600)

# escrow_test(file.cpp [SIM_ONLY] [GPU_ONLY] [DEEP seconds] [WITH more.cpp...] [LINK targets...])
#   builds <file>_sim (label sim), linked with escrow::sim, and, with ESCROW_GPU, the same source as <file>_gpu
#   (label gpu), linked with CUDA's shared runtime. A GPU test skips itself where there is no GPU.
#   Every test links GTest's main and tests/support, which has the kernels for both runtimes.
#   DEEP: the program has a full size, too, which ESCROW_DEEP=1 chooses. `ctest -C deep -L deep` runs it as
#   deep.<file>_sim or _gpu, so many seconds at most; its figures go to <build>/deep-results. `./build.sh deep` is
#   all of that; without -C deep there are no such tests.
function(escrow_test source)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SIM_ONLY;GPU_ONLY" "DEEP" "WITH;LINK")
  cmake_path(GET source STEM name)
  set(runtimes "")
  if(ESCROW_BUILD_SIM AND NOT arg_GPU_ONLY)
    list(APPEND runtimes sim)
  endif()
  if(ESCROW_GPU AND NOT arg_SIM_ONLY)
    list(APPEND runtimes gpu)
  endif()
  foreach(runtime IN LISTS runtimes)
    set(target ${name}_${runtime})
    escrow_test_program(${name} ${runtime} "${source};${arg_WITH}" "${arg_LINK}")
    escrow_test_run(${target} ${target})
    if(arg_DEEP)
      escrow_test_run(deep.${target} ${target} DEEP ${arg_DEEP})
    endif()
  endforeach()
endfunction()

# escrow_tests(<as escrow_test> FILES file.cpp...): tests that need nothing of their own. Where several files are compiled
# at once (CMAKE_UNITY_BUILD), up to six of a folder are one program on the simulated runtime, <folder>_tests_<n>_sim, in
# half the time. Each <file>_sim is a link to it, by whose name main() runs that file's tests alone, and a target.
function(escrow_tests)
  cmake_parse_arguments(PARSE_ARGV 0 arg "SIM_ONLY" "" "FILES;LINK")
  if(arg_SIM_ONLY)
    set(sim_only SIM_ONLY)
  endif()
  if(ESCROW_BUILD_SIM AND CMAKE_UNITY_BUILD)
    set(last "")
    set(together "")
    foreach(file IN LISTS arg_FILES)
      cmake_path(GET file PARENT_PATH folder)
      list(LENGTH together length)
      if(length EQUAL 6 OR (length GREATER 0 AND NOT folder STREQUAL last))
        escrow_tests_together(${last} "${together}" "${arg_LINK}")
        set(together "")
      endif()
      list(APPEND together ${file})
      set(last ${folder})
    endforeach()
    escrow_tests_together(${last} "${together}" "${arg_LINK}")
    if(arg_SIM_ONLY OR NOT ESCROW_GPU)
      return()
    endif()
    set(sim_only GPU_ONLY)
  endif()
  foreach(file IN LISTS arg_FILES)
    escrow_test(${file} ${sim_only} LINK ${arg_LINK})
  endforeach()
endfunction()

function(escrow_tests_together folder files link)
  set(n 1)
  while(TARGET ${folder}_tests_${n}_sim)
    math(EXPR n "${n} + 1")
  endwhile()
  set(program ${folder}_tests_${n})
  escrow_test_program(${program} sim "${files}" "${link}")
  set_target_properties(${program}_sim PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
  foreach(file IN LISTS files)
    cmake_path(GET file STEM name)
    set(path ${CMAKE_CURRENT_BINARY_DIR}/${folder}/${name}_sim)
    add_custom_command(TARGET ${program}_sim POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E create_symlink ${program}_sim ${path})
    add_custom_target(${name}_sim DEPENDS ${program}_sim)
    set_target_properties(${name}_sim PROPERTIES ESCROW_TEST_PROGRAM ${path})
    escrow_test_run(${name}_sim ${name}_sim)
  endforeach()
endfunction()

# What a test is compiled with, and the precompiled header that it reuses.
function(escrow_test_options target)
  escrow_compile_options(${target})
  if(ESCROW_SANITIZE MATCHES undefined)
    # A third of the time to compile, for what AddressSanitizer finds as well; the libraries have them.
    target_compile_options(${target} PRIVATE -fno-sanitize=null,alignment,object-size)
  endif()
endfunction()

function(escrow_test_program name runtime sources link)
  set(target ${name}_${runtime})
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE ${link} escrow_test_support_${runtime} GTest::gtest)
  escrow_test_options(${target})
  list(GET sources 0 folder)
  cmake_path(REMOVE_FILENAME folder)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${folder})
  if(escrow::pool IN_LIST link)
    target_precompile_headers(${target} REUSE_FROM escrow_test_world_${runtime})
  else()
    target_precompile_headers(${target} REUSE_FROM escrow_test_support_${runtime})
  endif()
endfunction()

# One run of a test program, with arguments if need be: escrow_test_run(name target [DEEP seconds] [ARGS ...])
function(escrow_test_run name target)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "DEEP" "ARGS")
  set(seconds_max ${escrow_test_seconds_max})
  string(REGEX MATCH "sim$|gpu$" labels ${target})
  if(labels STREQUAL gpu)
    set(lock RESOURCE_LOCK gpu)  # kernels that spin would hold up others
  endif()
  set(environment
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp:halt_on_error=1:report_thread_leaks=0"
    "ASAN_OPTIONS=detect_leaks=1"
    # Without libstdc++'s memory for exceptions: a plugin that has libstdc++ inside never frees its own (g++ 13).
    "GLIBCXX_TUNABLES=glibcxx.eh_pool.obj_count=0"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp:print_suppressions=0")
  if(arg_DEEP)
    set(configurations CONFIGURATIONS deep)
    set(seconds_max ${arg_DEEP})
    list(APPEND labels deep)
    list(APPEND environment ESCROW_DEEP=1 ESCROW_RESULTS=${PROJECT_BINARY_DIR}/deep-results)
    set(lock RUN_SERIAL ON)  # the long runs measure
  endif()
  set(program ${target})
  get_target_property(linked ${target} ESCROW_TEST_PROGRAM)
  if(linked)
    set(program ${CMAKE_CROSSCOMPILING_EMULATOR} ${linked})  # CMake adds it to a target's name only
  endif()
  add_test(NAME ${name} ${configurations} COMMAND ${program} ${arg_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${seconds_max} SKIP_RETURN_CODE 77
    ENVIRONMENT "${environment}" ${lock})
endfunction()

# The parts' own sources, to be compiled once more: escrow_add_sources(target parts...)
function(escrow_add_sources target)
  foreach(part IN LISTS ARGN)
    get_target_property(names escrow_${part} SOURCES)
    list(FILTER names INCLUDE REGEX "^[a-z_]+\\.cpp$")
    list(TRANSFORM names PREPEND ${PROJECT_SOURCE_DIR}/${part}/)
    target_sources(${target} PRIVATE ${names})
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/${part}/include ${PROJECT_SOURCE_DIR}/${part})
  endforeach()
endfunction()

# For a test of the law of destroy callbacks, which includes callback_watch.hpp: the linker hands it every user object
# that is made, every lock and every system call, so that it knows what happens inside a callback; on a GPU, CUPTI tells of
# CUDA calls.
function(watch_callbacks name)
  foreach(runtime sim gpu)
    if(TARGET ${name}_${runtime})
      target_link_options(${name}_${runtime} PRIVATE
        -Wl,--wrap=cudaUserObjectCreate,--wrap=pthread_mutex_lock,--wrap=syscall)
    endif()
  endforeach()
  if(TARGET ${name}_gpu)
    target_link_libraries(${name}_gpu PRIVATE CUDA::cupti)
  endif()
endfunction()
