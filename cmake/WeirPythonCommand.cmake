# SPDX-License-Identifier: Apache-2.0
# The weir command in the Python package: built with it, or WEIR_PROGRAM.
include_guard(GLOBAL)

if(WEIR_PROGRAM)
  if(NOT EXISTS "${WEIR_PROGRAM}")
    message(FATAL_ERROR "WEIR_PROGRAM: there is no file ${WEIR_PROGRAM}")
  endif()
  install(PROGRAMS "${WEIR_PROGRAM}" DESTINATION weir/bin RENAME weir COMPONENT python)
elseif(TARGET weir_tool)
  add_dependencies(weir_python weir_tool)
  install(TARGETS weir_tool RUNTIME DESTINATION weir/bin COMPONENT python)
else()
  message(STATUS "weir: the Python package is built without the weir command: WEIR_TOOLS=ON adds it")
endif()
