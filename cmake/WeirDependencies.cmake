# SPDX-License-Identifier: Apache-2.0
# Finds the libraries that Weir stands on, and gives each one name, however the system packages it:
#
#   weir_dependency::fmt  weir_dependency::spdlog  weir_dependency::json  weir_dependency::zlib
#   weir_dependency::cli11 (tools)  weir_dependency::benchmark (bench)
#
# Link with these names only. The installed package uses this file too, for the ones that weir::weir
# needs: weirConfig.cmake sets WEIR_STATIC_DEPS to what the library was built with.
include_guard(GLOBAL)

find_package(Threads REQUIRED)

# Some systems carry these as headers alone, with no CMake package: then the header is looked for.
macro(weir_header_only_dependency name header debian)
  add_library(weir_dependency::${name} INTERFACE IMPORTED GLOBAL)
  find_path(WEIR_${name}_INCLUDE_DIR ${header})
  if(NOT WEIR_${name}_INCLUDE_DIR)
    message(FATAL_ERROR "weir: ${header} not found: install ${debian} (the name of Debian's package), or set "
                        "WEIR_${name}_INCLUDE_DIR to the folder that has it")
  endif()
  mark_as_advanced(WEIR_${name}_INCLUDE_DIR)
  target_include_directories(weir_dependency::${name} SYSTEM
                             INTERFACE "${WEIR_${name}_INCLUDE_DIR}")
endmacro()

macro(weir_alias_dependency name target)
  add_library(weir_dependency::${name} INTERFACE IMPORTED GLOBAL)
  target_link_libraries(weir_dependency::${name} INTERFACE ${target})
endmacro()

# Distributions ship fmt and spdlog as shared libraries only: a binary that must not need them
# compiles them from their headers.
find_package(fmt CONFIG QUIET)
if(WEIR_STATIC_DEPS AND TARGET fmt::fmt-header-only)
  weir_alias_dependency(fmt fmt::fmt-header-only)
elseif(TARGET fmt::fmt)
  weir_alias_dependency(fmt fmt::fmt)
else()
  weir_header_only_dependency(fmt fmt/format.h libfmt-dev)
  target_compile_definitions(weir_dependency::fmt INTERFACE FMT_HEADER_ONLY=1)
endif()

find_package(spdlog CONFIG QUIET)
if(NOT WEIR_STATIC_DEPS AND TARGET spdlog::spdlog)
  weir_alias_dependency(spdlog spdlog::spdlog)
else()
  weir_header_only_dependency(spdlog spdlog/spdlog.h libspdlog-dev)
  target_compile_definitions(weir_dependency::spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
  target_link_libraries(weir_dependency::spdlog INTERFACE weir_dependency::fmt Threads::Threads)
  # GCC 13 sees copies out of bounds in fmt's buffer where spdlog inlines it; there are none.
  target_compile_options(weir_dependency::spdlog
                         INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>)
endif()

find_package(nlohmann_json CONFIG QUIET)
if(TARGET nlohmann_json::nlohmann_json)
  weir_alias_dependency(json nlohmann_json::nlohmann_json)
else()
  weir_header_only_dependency(json nlohmann/json.hpp nlohmann-json3-dev)
endif()

if(WEIR_STATIC_DEPS)
  set(ZLIB_USE_STATIC_LIBS ON)
  find_package(ZLIB QUIET)
  unset(ZLIB_USE_STATIC_LIBS)
endif()
if(NOT TARGET ZLIB::ZLIB)
  find_package(ZLIB REQUIRED)
endif()
weir_alias_dependency(zlib ZLIB::ZLIB)

if(WEIR_DEPENDENCIES_OF_LIBRARY_ONLY)
  return()
endif()

if(WEIR_TOOLS)
  find_package(CLI11 CONFIG QUIET)
  find_path(WEIR_cli11_INCLUDE_DIR CLI/CLI.hpp)
  if(TARGET CLI11::CLI11)
    weir_alias_dependency(cli11 CLI11::CLI11)
  elseif(WEIR_PYTHON AND NOT WEIR_cli11_INCLUDE_DIR)
    # The package served PyTorch before it had the command, and still does on such a machine.
    message(WARNING "weir: CLI11 not found (Debian: libcli11-dev): the Python package will be without "
                    "the weir command")
    set(WEIR_TOOLS OFF)
  else()
    weir_header_only_dependency(cli11 CLI/CLI.hpp libcli11-dev)
  endif()
endif()

if(WEIR_TESTS)
  find_package(GTest REQUIRED)
endif()

if(WEIR_BENCHMARKS)
  find_package(benchmark CONFIG QUIET)
  find_library(WEIR_STATIC_BENCHMARK NAMES libbenchmark.a)
  mark_as_advanced(WEIR_STATIC_BENCHMARK)
  if(WEIR_STATIC_DEPS AND WEIR_STATIC_BENCHMARK)
    weir_header_only_dependency(benchmark benchmark/benchmark.h libbenchmark-dev)
    target_link_libraries(weir_dependency::benchmark INTERFACE "${WEIR_STATIC_BENCHMARK}"
                                                               Threads::Threads)
  elseif(TARGET benchmark::benchmark)
    weir_alias_dependency(benchmark benchmark::benchmark)
  else()
    message(STATUS "Google Benchmark not found: the benchmarks are not built")
    set(WEIR_BENCHMARKS OFF)
  endif()
endif()

# Both optional: without the toolkit's headers everything but CudaDevice builds. Of NCCL its header
# is all that a build needs.
if(WEIR_CUDA)
  find_package(CUDAToolkit QUIET)
  find_path(WEIR_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(WEIR_NCCL_INCLUDE_DIR)
endif()
set(WEIR_HAVE_CUDA OFF)
if(WEIR_CUDA AND CUDAToolkit_FOUND)
  set(WEIR_HAVE_CUDA ON)
endif()
set(WEIR_HAVE_NCCL OFF)
set(WEIR_LEAST_NCCL 22807) # 2.28.7: ncclCommRevoke
if(WEIR_HAVE_CUDA AND WEIR_NCCL_INCLUDE_DIR)
  file(STRINGS "${WEIR_NCCL_INCLUDE_DIR}/nccl.h" code REGEX "define NCCL_VERSION_CODE ")
  string(REGEX MATCH "[0-9]+" code "${code}")
  if(code GREATER_EQUAL WEIR_LEAST_NCCL)
    set(WEIR_HAVE_NCCL ON)
  else()
    message(WARNING "weir: ${WEIR_NCCL_INCLUDE_DIR}/nccl.h is of NCCL '${code}', and ${WEIR_LEAST_NCCL} "
                    "(2.28.7) or later is needed: the communication layer is built for simulated "
                    "ranks only. Name the folder of a newer one: "
                    "-DWEIR_NCCL_INCLUDE_DIR=FOLDER")
  endif()
endif()
message(STATUS "weir: CUDA ${WEIR_HAVE_CUDA} ${CUDAToolkit_VERSION}, NCCL ${WEIR_HAVE_NCCL}")
