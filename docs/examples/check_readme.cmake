# Fails unless README.md shows first.cc, whole and unchanged. Run with cmake -P.
file(READ "${CMAKE_CURRENT_LIST_DIR}/first.cc" example)
file(READ "${CMAKE_CURRENT_LIST_DIR}/../../README.md" readme)
string(FIND "${readme}" "\n```cpp\n${example}```\n" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md does not show docs/examples/first.cc as it is")
endif()
