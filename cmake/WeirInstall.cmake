# `cmake --install`, and the package that find_package(weir) finds afterwards.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

set(weir_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/weir")
set(weir_targets weir weir_comm weir_core weir_sim)
if(TARGET weir_cuda)
  list(APPEND weir_targets weir_cuda)
endif()

install(TARGETS ${weir_targets} EXPORT weirTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/allocator/include/weir"
                  "${PROJECT_SOURCE_DIR}/comm/include/weir"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(EXPORT weirTargets NAMESPACE weir:: DESTINATION "${weir_package_dir}")
if(TARGET weir_tool)
  install(TARGETS weir_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/weirConfig.cmake.in" "${PROJECT_BINARY_DIR}/weirConfig.cmake"
  INSTALL_DESTINATION "${weir_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/weirConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/weirConfig.cmake"
              "${PROJECT_BINARY_DIR}/weirConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/WeirDependencies.cmake"
        DESTINATION "${weir_package_dir}")
