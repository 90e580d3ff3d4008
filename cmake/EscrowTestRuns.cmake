# SPDX-License-Identifier: Apache-2.0
# For programs that are linked with escrow::simulated.

# escrow_add_tests(TARGET [ARGUMENT...]): the test TARGET, unless there is one, and the same program in each mode of the
# simulator that finds what no other does: TARGET.audit, TARGET.reuse and TARGET.memory. See the guide to testing.
function(escrow_add_tests target)
  if(NOT TEST ${target})
    add_test(NAME ${target} COMMAND ${target} ${ARGN})
  endif()
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)  # stacks in messages have its functions' names
  endif()
  foreach(mode IN ITEMS AUDIT=1 REUSE=late MEMORY=apart)
    string(REGEX REPLACE "=.*" "" name ${mode})
    string(TOLOWER ${name} name)
    set(name ${target}.${name})
    add_test(NAME ${name} COMMAND ${target} ${ARGN})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT ESCROW_${mode})
  endforeach()
endfunction()
