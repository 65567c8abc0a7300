# SPDX-License-Identifier: Apache-2.0
# weir_dependency::torch: PyTorch's allocator, out of the wheel that WEIR_TORCH_PYTHON would import, and
# the CUDA runtime that it uses. Not through find_package(Torch): that wants the whole toolkit to
# look as it did where the wheel was built, and all that is needed is in two libraries.
#
# Sets WEIR_TORCH_VERSION, WEIR_TORCH_NAME and WEIR_TORCH_BUILT_FOR (the backend's folder, and its built_for.json),
# and WEIR_TORCH_FITS. Fails, saying what is missing; where
# WEIR_TORCH_MAY_LACK is on, warns, and leaves WEIR_TORCH_FITS off.
include_guard(GLOBAL)
set(WEIR_TORCH_FITS OFF)
macro(weir_torch_fails)
  if(WEIR_TORCH_MAY_LACK)
    message(WARNING ${ARGN} ". Weir is built without the backend for PyTorch, with the pluggable library only")
  else()
    message(FATAL_ERROR ${ARGN})
  endif()
  return()
endmacro()

find_program(WEIR_TORCH_PYTHON NAMES python3 python DOC "The Python that has PyTorch")
if(NOT WEIR_TORCH_PYTHON)
  weir_torch_fails("WEIR_TORCH and WEIR_PEERS need a Python that has PyTorch: set WEIR_TORCH_PYTHON")
endif()

# Found, not imported: that takes seconds, and all of its dependencies.
set(probe "${PROJECT_SOURCE_DIR}/allocator/torch/weir/_backends.py")
execute_process(COMMAND "${WEIR_TORCH_PYTHON}" "${probe}" OUTPUT_VARIABLE WEIR_TORCH_BUILT_FOR
                ERROR_VARIABLE error RESULT_VARIABLE result
                ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT result EQUAL 0)
  weir_torch_fails("WEIR_TORCH, WEIR_PEERS: ${error}: install PyTorch (pip install torch), or set "
                   "WEIR_TORCH_PYTHON to a Python that has it")
endif()
string(JSON torch_dir GET "${WEIR_TORCH_BUILT_FOR}" folder)
string(JSON WEIR_TORCH_VERSION GET "${WEIR_TORCH_BUILT_FOR}" version)
string(JSON WEIR_TORCH_NAME GET "${WEIR_TORCH_BUILT_FOR}" name)
string(JSON WEIR_TORCH_BUILT_FOR REMOVE "${WEIR_TORCH_BUILT_FOR}" folder)
foreach(file include/c10/cuda/CUDACachingAllocator.h lib/libc10.so lib/libc10_cuda.so)
  if(NOT EXISTS "${torch_dir}/${file}")
    weir_torch_fails("WEIR_TORCH, WEIR_PEERS: the PyTorch in ${torch_dir} has no ${file}: "
                     "it must be a build with CUDA")
  endif()
endforeach()

# One CUDA runtime for the program and for PyTorch: the one beside PyTorch in its environment, or
# the toolkit's. Both have one name ("libcudart.so.13"), so whichever is loaded first is everyone's.
file(GLOB runtimes "${torch_dir}/../nvidia/*/lib/libcudart.so.${CUDAToolkit_VERSION_MAJOR}")
if(runtimes)
  list(GET runtimes 0 runtime)
  get_filename_component(runtime "${runtime}" REALPATH)
elseif(TARGET CUDA::cudart)
  set(runtime CUDA::cudart)
else()
  weir_torch_fails("WEIR_TORCH, WEIR_PEERS: there is no libcudart.so.${CUDAToolkit_VERSION_MAJOR}, neither "
                   "beside PyTorch (in ${torch_dir}/../nvidia) nor in the CUDA toolkit")
endif()

# Imported, so that the check below may link with it.
add_library(weir_dependency::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(weir_dependency::torch SYSTEM INTERFACE "${torch_dir}/include"
                                                             ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(weir_dependency::torch INTERFACE "${torch_dir}/lib/libc10_cuda.so"
                                                 "${torch_dir}/lib/libc10.so" ${runtime})

# Headers that don't fit, another ABI of std::string, another CUDA: all seen here.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES weir_dependency::torch)
set(CMAKE_REQUIRED_QUIET ON)
unset(WEIR_TORCH_FITS CACHE)  # another PyTorch may have come since
unset(WEIR_TORCH_FITS)
check_cxx_source_compiles(
  "#include <c10/cuda/CUDACachingAllocator.h>
  #include <c10/util/Backtrace.h>
  namespace c10::cuda::_internal {
  C10_CUDA_API void setHasPrimaryContext(bool (*answer)(DeviceIndex));
  }
  int main() {
    int version = 0;
    void* block = c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(1, nullptr);
    c10::cuda::CUDACachingAllocator::raw_delete(block);
    c10::cuda::_internal::setHasPrimaryContext(nullptr);
    const std::string trace = c10::get_backtrace();
    return cudaDriverGetVersion(&version) + static_cast<int>(trace.size());
  }"
  WEIR_TORCH_FITS)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_QUIET)
if(NOT WEIR_TORCH_FITS)
  weir_torch_fails("WEIR_TORCH, WEIR_PEERS: a program with PyTorch ${WEIR_TORCH_VERSION} (${torch_dir}), the CUDA "
                   "toolkit ${CUDAToolkit_VERSION} and ${runtime} does not build. CMake's log of errors in "
                   "${CMAKE_BINARY_DIR}/CMakeFiles has the compiler's words. Known causes: a PyTorch before "
                   "2.11; one built for another major version of CUDA, or for the old ABI of std::string")
endif()
message(STATUS "weir: PyTorch ${WEIR_TORCH_VERSION}, CUDA runtime ${runtime}")

# weir_dependency::torch_c10d: torch.distributed too, where the wheel has its headers.
set(WEIR_TORCH_HAS_C10D OFF)
if(EXISTS "${torch_dir}/include/torch/csrc/distributed/c10d/ProcessGroup.hpp"
   AND EXISTS "${torch_dir}/lib/libtorch_cpu.so")
  set(WEIR_TORCH_HAS_C10D ON)
  add_library(weir_dependency::torch_c10d INTERFACE IMPORTED GLOBAL)
  target_link_libraries(weir_dependency::torch_c10d INTERFACE "${torch_dir}/lib/libtorch_cpu.so"
                                                            weir_dependency::torch)
  # Those headers declare c10d's operations only so.
  target_compile_definitions(weir_dependency::torch_c10d INTERFACE USE_C10D USE_DISTRIBUTED)
else()
  message(STATUS "weir: PyTorch in ${torch_dir} has no headers of torch.distributed: operations of its "
                 "groups get no fences")
endif()
