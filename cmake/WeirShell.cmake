# SPDX-License-Identifier: Apache-2.0
# The manual page of the command and its completions for bash, zsh and fish, made from its own
# --help when the command is built (for a page, help2man is needed).
include_guard(GLOBAL)
if(CMAKE_CROSSCOMPILING)
  message(STATUS "weir: built for another machine: no manual page and no completions are made")
  return()
endif()

set(folder "${PROJECT_BINARY_DIR}/shell")
set(made "")
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_Interpreter_FOUND)
  set(generator "${PROJECT_SOURCE_DIR}/tools/shell/completions")
  add_custom_command(
    OUTPUT "${folder}/weir.bash" "${folder}/_weir" "${folder}/weir.fish"
    COMMAND Python3::Interpreter "${generator}" $<TARGET_FILE:weir_tool> "${folder}"
    DEPENDS weir_tool "${generator}"
    COMMENT "Making completions for bash, zsh and fish"
    VERBATIM)
  list(APPEND made "${folder}/weir.bash" "${folder}/_weir" "${folder}/weir.fish")
  install(FILES "${folder}/weir.bash" RENAME weir COMPONENT tool
          DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install(FILES "${folder}/_weir" COMPONENT tool
          DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
  install(FILES "${folder}/weir.fish" COMPONENT tool
          DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
else()
  message(STATUS "weir: Python 3 not found: no completions are made")
endif()

find_program(WEIR_HELP2MAN help2man)
mark_as_advanced(WEIR_HELP2MAN)
if(WEIR_HELP2MAN)
  set(include "${PROJECT_SOURCE_DIR}/tools/shell/weir.h2m")
  add_custom_command(
    OUTPUT "${folder}/weir.1"
    COMMAND "${WEIR_HELP2MAN}" --no-info --no-discard-stderr "--include=${include}"
            "--output=${folder}/weir.1" $<TARGET_FILE:weir_tool>
    DEPENDS weir_tool "${include}"
    COMMENT "Making the manual page"
    VERBATIM)
  list(APPEND made "${folder}/weir.1")
  install(FILES "${folder}/weir.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT tool)
else()
  message(STATUS "weir: help2man not found: no manual page is made")
endif()
file(MAKE_DIRECTORY "${folder}")
add_custom_target(weir_shell ALL DEPENDS ${made})
