# SPDX-License-Identifier: Apache-2.0
# How every target of the project is compiled.
include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

find_program(WEIR_CCACHE ccache)
mark_as_advanced(WEIR_CCACHE)
if(WEIR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${WEIR_CCACHE}")
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache" AND NOT DEFINED CMAKE_DISABLE_PRECOMPILE_HEADERS)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

# tools/run turns CMAKE_UNITY_BUILD on: sources are compiled in batches, which read what they include
# once. A build from nothing takes a third of the time so, and one after an edit takes longer. (Names
# in namespaces without one must differ within a library. clang-tidy, in CI, reads each source alone.)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
# For a batch GCC collects no garbage below 1 GB, which saves a tenth of its time.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=400;--param=ggc-min-heapsize=1000000>")
endif()

if(WEIR_SANITIZE)
  # For C++ alone: the compilers of other languages may not know these sanitizers.
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${WEIR_SANITIZE};-fno-sanitize-recover=all>"
    "$<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>")
  # Of the standard library's containers, whose misuse no sanitizer sees: an empty optional that is read.
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  add_link_options(-fsanitize=${WEIR_SANITIZE})
endif()

# Warnings for a target of ours. (Not for all: generated and outside sources are not ours to fix.)
function(weir_warnings target)
  # Fields that a designated initialiser leaves out have their defaults: that is what it is for.
  # GCC 13 takes a reference got from a call that has a view among its arguments for dangling.
  # GCC 12 at -O3 takes any "text" + string for an overlapping copy (its bug 105651).
  # In a batch every source but the batch looks like a header to GCC, which then warns of members whose
  # types are in a namespace without a name.
  target_compile_options(
    ${target}
    PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wno-missing-field-initializers
            $<$<BOOL:${WEIR_WERROR}>:-Werror>
            $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage>
            $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
            $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>
            $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>>)
endfunction()

# weir_library(NAME): a static library of the allocator. Includes read "weir/device.h" for public
# headers, and "core/memory/tiles.h" (from allocator/) for the library's own.
function(weir_library name)
  add_library(${name} STATIC)
  target_include_directories(
    ${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/allocator/include>
                   $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/allocator>
                   $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  weir_warnings(${name})
endfunction()
