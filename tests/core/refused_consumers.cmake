# Every public header, compiled in a way that Escrow does not support: one #error that says why, and few lines in all.
#   cmake -DCOMPILER=... -DPARTS=folder of the parts -DINCLUDES=folders, with | between -P refused_consumers.cmake
set(options_0 -std=c++17)
set(text_0 "Escrow needs C\\+\\+20: compile with -std=c\\+\\+20")
# A null stream would be another one than the library's.
set(options_1 -std=c++20 -DCUDA_API_PER_THREAD_DEFAULT_STREAM)
set(text_1 "Escrow does not support CUDA_API_PER_THREAD_DEFAULT_STREAM: pass cudaStreamPerThread")

string(REPLACE "|" ";" folders "${INCLUDES}")
list(REMOVE_DUPLICATES folders)
list(TRANSFORM folders PREPEND -I)

function(expect_refusal case header)
  execute_process(COMMAND ${COMPILER} ${options_${case}} -fsyntax-only -x c++ ${folders} -include ${header} /dev/null
    ERROR_VARIABLE said RESULT_VARIABLE status)
  string(REPLACE ";" "," said "${said}")
  string(REGEX MATCHALL "[^\n]*error: (#error )?\"[^\n]*" refusals "${said}")
  string(REGEX MATCHALL "\n" lines "${said}")
  list(LENGTH refusals count)
  list(LENGTH lines length)
  if(status EQUAL 0 OR NOT count EQUAL 1 OR NOT refusals MATCHES "${text_${case}}" OR length GREATER 30)
    message(FATAL_ERROR "${header}, ${options_${case}}: ${count} refusals in ${length} lines, not one: ${text_${case}}\n${said}")
  endif()
endfunction()

file(GLOB umbrellas ${PARTS}/core/include/escrow/core.hpp ${PARTS}/*/include/escrow/*.hpp)
list(FILTER umbrellas EXCLUDE REGEX "/sim/|version.hpp$")
file(GLOB others ${PARTS}/*/include/escrow/*/*.hpp)
list(FILTER others EXCLUDE REGEX "/sim/")
foreach(header IN LISTS umbrellas others)
  expect_refusal(0 ${header})
endforeach()
foreach(header IN LISTS umbrellas)
  expect_refusal(1 ${header})
endforeach()
