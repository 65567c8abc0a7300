# SPDX-License-Identifier: Apache-2.0
# Fails unless README.md shows its example, whole and unchanged. Run with cmake -P.
file(READ "${CMAKE_CURRENT_LIST_DIR}/../../README.md" readme)
foreach(example first.cc)
  file(READ "${CMAKE_CURRENT_LIST_DIR}/${example}" text)
  # README leaves the line of the licence out.
  string(REGEX REPLACE "^// SPDX[^\n]*\n" "" text "${text}")
  string(FIND "${readme}" "\n```cpp\n${text}```\n" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "README.md does not show docs/examples/${example} as it is")
  endif()
endforeach()
