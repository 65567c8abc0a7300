# SPDX-License-Identifier: Apache-2.0
# weir_cuda_object(OBJECT SOURCE [INCLUDE folder...])
#
# Compiles SOURCE, a .cu file, into OBJECT by a command of its own: with CUDA as a language of
# CMake's, every target that links the object would have to be one of that language too.
include_guard(GLOBAL)

set(WEIR_CUDA_ARCHITECTURES "80" "90" CACHE STRING "GPU architectures of the project's kernels")

function(weir_cuda_object object source)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "INCLUDE")
  set(flags -std=c++20 -O2 -lineinfo -Xcompiler=-fPIC,-Wall,-Wextra)
  if(WEIR_WERROR)
    list(APPEND flags -Xcompiler=-Werror --Werror=all-warnings)
  endif()
  foreach(architecture IN LISTS WEIR_CUDA_ARCHITECTURES)
    list(APPEND flags "--generate-code=arch=compute_${architecture},code=[compute_${architecture},sm_${architecture}]")
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND flags "-ccbin=${CMAKE_CXX_COMPILER}")
  endif()
  list(TRANSFORM arg_INCLUDE PREPEND "-I")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" ${flags} ${arg_INCLUDE} -MD -MF "${object}.d" -c
            "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
    DEPENDS ${source}
    DEPFILE "${object}.d"
    COMMENT "Building CUDA object ${source}"
    VERBATIM)
endfunction()
