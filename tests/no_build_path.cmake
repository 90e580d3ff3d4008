# SPDX-License-Identifier: Apache-2.0
# A library has no path of who built it: cmake -DLIBRARY=file "-DPATHS=folders" -P no_build_path.cmake
foreach(path IN LISTS PATHS)
  file(STRINGS ${LIBRARY} found REGEX "${path}/.*\\.[ch]pp")
  if(found)
    message(FATAL_ERROR "${LIBRARY} has: ${found}")
  endif()
endforeach()
