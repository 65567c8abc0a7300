# SPDX-License-Identifier: Apache-2.0
# weir_for_old_systems(TARGET STATIC|SHARED): with WEIR_OLD_SYSTEMS, which tools/wheels sets, the target's binary runs
# with glibc 2.28 and the libstdc++ of GCC 8 too, whatever this system has. Sources are compiled as ever:
# old_systems.cc has what later C libraries changed, and the newer parts of libstdc++ are linked in.
# STATIC: all of libstdc++ is in the binary. SHARED: the binary uses the process's libstdc++, since exceptions
# pass between the two, and has what GCC 8's lacks.
include_guard(GLOBAL)
option(WEIR_OLD_SYSTEMS "Link the Python package's binaries for glibc 2.28 (x86-64, GCC)" OFF)

function(weir_for_old_systems target libstdcxx)
  if(NOT WEIR_OLD_SYSTEMS)
    return()
  endif()
  target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/old_systems.cc")
  set_property(SOURCE "${PROJECT_SOURCE_DIR}/cmake/old_systems.cc" TARGET_DIRECTORY ${target}
               PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(${target} PRIVATE -Wl,--push-state,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
                                          -l:librt.so.1 -Wl,--pop-state)
  target_link_options(${target} PRIVATE LINKER:--gc-sections,-z,defs)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_compile_definitions(${target} PRIVATE WEIR_OLD_SYSTEMS_PROGRAM)
  endif()
  if(libstdcxx STREQUAL "STATIC")
    target_link_options(${target} PRIVATE -static-libstdc++)
    return()
  endif()
  set(members condition_variable.o floating_from_chars.o functexcept.o memory_resource.o snprintf_lite.o)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/libstdc++")
  file(MAKE_DIRECTORY "${folder}")
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libstdc++.a
                  OUTPUT_VARIABLE archive OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND "${CMAKE_AR}" x "${archive}" ${members} WORKING_DIRECTORY "${folder}"
                  COMMAND_ERROR_IS_FATAL ANY)
  list(TRANSFORM members PREPEND "${folder}/")
  target_link_libraries(${target} PRIVATE ${members})
endfunction()
