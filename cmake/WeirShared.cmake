# SPDX-License-Identifier: Apache-2.0
# libweir.so: the allocator and the communication layer in one shared library, made of the objects
# that the static libraries have. It exports what cmake/exports.txt lists and nothing else.
#
# Targets: weir_shared, and WEIR_SOVERSION, which packaging/README.md explains.
include_guard(GLOBAL)

set(WEIR_SOVERSION "${PROJECT_VERSION_MAJOR}")
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(WEIR_SOVERSION "0.${PROJECT_VERSION_MINOR}")
endif()

# A line of the list is a symbol, and what it is called in C++ behind a `#`.
set(list "${PROJECT_SOURCE_DIR}/cmake/exports.txt")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
file(STRINGS "${list}" lines REGEX "^[A-Za-z_]")
set(symbols "")
foreach(line IN LISTS lines)
  string(REGEX MATCH "^[A-Za-z0-9_]+" symbol "${line}")
  string(APPEND symbols "    ${symbol};\n")
endforeach()
set(script "${PROJECT_BINARY_DIR}/exports.map")
file(CONFIGURE OUTPUT "${script}"
     CONTENT "WEIR_${WEIR_SOVERSION} {\n  global:\n${symbols}  local:\n    *;\n};\n" @ONLY)

set(parts weir_core weir_sim weir weir_comm)
if(TARGET weir_cuda)
  list(APPEND parts weir_cuda)
endif()
# A library needs a source of its own; all of the code comes from the parts.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/weir_shared.cc" CONTENT "")
add_library(weir_shared SHARED "${PROJECT_BINARY_DIR}/weir_shared.cc")
list(TRANSFORM parts REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE archives)
# The parts once more as targets, for the libraries that they need.
target_link_libraries(weir_shared PRIVATE -Wl,--whole-archive ${archives} -Wl,--no-whole-archive
                                          weir_comm)
add_dependencies(weir_shared ${parts})
target_link_options(weir_shared PRIVATE "LINKER:--version-script,${script}" "LINKER:-z,defs")
target_include_directories(weir_shared INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
set_target_properties(
  weir_shared PROPERTIES OUTPUT_NAME weir EXPORT_NAME weir VERSION "${PROJECT_VERSION}"
                         SOVERSION "${WEIR_SOVERSION}" LINK_DEPENDS "${script};${archives}")
if(WEIR_HAVE_CUDA)
  target_compile_definitions(weir_shared INTERFACE WEIR_HAVE_CUDA=1)
endif()
