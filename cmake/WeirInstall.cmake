# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: libraries, headers, what find_package(weir) and pkg-config read, the command
# with its manual page and completions, the documents.
#
# Components: runtime (libweir.so.N), tool (the command, its manual page and completions), dev (what
# programs are built with), doc.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

option(WEIR_STRIP "Install programs and shared libraries without symbols for debuggers" ON)
if(WEIR_STRIP)
  install(CODE "set(CMAKE_INSTALL_DO_STRIP TRUE)" ALL_COMPONENTS)
endif()

set(weir_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/weir")
set(weir_targets weir weir_comm weir_core weir_sim)
if(TARGET weir_cuda)
  list(APPEND weir_targets weir_cuda)
endif()

# With the shared library, weir::weir and weir::comm are that, and the static ones are
# weir::weir_static and weir::comm_static.
set(WEIR_HAVE_SHARED OFF)
if(TARGET weir_shared)
  set(WEIR_HAVE_SHARED ON)
  set_target_properties(weir PROPERTIES EXPORT_NAME weir_static)
  set_target_properties(weir_comm PROPERTIES EXPORT_NAME comm_static)
  install(TARGETS weir_shared EXPORT weirTargets
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime
          NAMELINK_COMPONENT dev)
  install(EXPORT weirTargets NAMESPACE weir:: DESTINATION "${weir_package_dir}" COMPONENT dev)
endif()
install(TARGETS ${weir_targets} EXPORT weirStaticTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev)
install(EXPORT weirStaticTargets NAMESPACE weir:: DESTINATION "${weir_package_dir}" COMPONENT dev)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/allocator/include/weir"
                  "${PROJECT_SOURCE_DIR}/comm/include/weir"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT dev FILES_MATCHING PATTERN "*.h")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/weirConfig.cmake.in" "${PROJECT_BINARY_DIR}/weirConfig.cmake"
  INSTALL_DESTINATION "${weir_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/weirConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/weirConfig.cmake"
              "${PROJECT_BINARY_DIR}/weirConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/WeirDependencies.cmake"
        DESTINATION "${weir_package_dir}" COMPONENT dev)

if(TARGET weir_shared)
  # From where weir.pc itself is, so that the prefix may be chosen, or moved, at installation.
  file(RELATIVE_PATH weir_pc_prefix "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/weir.pc.in" "${PROJECT_BINARY_DIR}/weir.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/weir.pc"
          DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)
endif()

if(TARGET weir_tool)
  install(TARGETS weir_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tool)
  include(WeirShell)
endif()

install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/LICENSE"
              "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT doc)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs"
        COMPONENT doc FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.c" PATTERN "*.cc"
        PATTERN "site" EXCLUDE PATTERN "fragments" EXCLUDE PATTERN "decisions" EXCLUDE)
