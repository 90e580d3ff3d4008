# escrow_test(file.cpp [SIM_ONLY] [GPU_ONLY] [TIMEOUT seconds] [LINK targets...])
#   builds <file>_sim (label sim), linked with escrow::sim, and, with ESCROW_GPU, the same source as <file>_gpu
#   (label gpu), linked with cudart_static. A GPU test skips itself where there is no GPU.
#   Every test links GTest's main and tests/support, which has the kernels for both runtimes.
function(escrow_test source)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SIM_ONLY;GPU_ONLY" "TIMEOUT" "LINK")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  cmake_path(GET source STEM name)
  if(ESCROW_BUILD_SIM AND NOT arg_GPU_ONLY)
    escrow_test_program(${name} sim ${source} ${arg_TIMEOUT} "${arg_LINK}")
  endif()
  if(ESCROW_GPU AND NOT arg_SIM_ONLY)
    escrow_test_program(${name} gpu ${source} ${arg_TIMEOUT} "${arg_LINK}")
  endif()
endfunction()

function(escrow_test_program name runtime source timeout link)
  set(target ${name}_${runtime})
  add_executable(${target} ${source})
  target_link_libraries(${target} PRIVATE ${link} escrow_test_support_${runtime} GTest::gtest)
  escrow_compile_options(${target})
  if(ESCROW_SANITIZE MATCHES undefined)
    # A third of the time to compile, for what AddressSanitizer finds as well; the libraries have them.
    target_compile_options(${target} PRIVATE -fno-sanitize=null,alignment,object-size)
  endif()
  target_precompile_headers(${target} REUSE_FROM escrow_test_support_${runtime})
  add_test(NAME ${target} COMMAND ${target})
  if(runtime STREQUAL gpu)
    set_tests_properties(${target} PROPERTIES RESOURCE_LOCK gpu)  # kernels that spin would hold up others
  endif()
  set_tests_properties(${target} PROPERTIES
    LABELS ${runtime} TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp:halt_on_error=1:report_thread_leaks=0;ASAN_OPTIONS=detect_leaks=1;LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp:print_suppressions=0")
endfunction()
