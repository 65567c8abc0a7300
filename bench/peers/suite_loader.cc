// SPDX-License-Identifier: Apache-2.0
// An allocator of `weir bench` that needs CUDA. It prepares the process and then loads the library
// that has the allocator, since both PyTorch's setting and the runtime that stands before CUDA's
// are looked at when that one is loaded.
//
//   WEIR_SUITE_NAME      of the allocator
//   WEIR_SUITE_LIBRARY   the library, beside this one
//   WEIR_SUITE_SETTING   what PYTORCH_CUDA_ALLOC_CONF is to be; empty: nothing
//   WEIR_SUITE_NEEDS_GPU 1: there is nothing that stands for its GPU
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "suite/suite_allocator.h"

namespace {

std::string& reason() {
  static std::string reason;
  return reason;
}

std::string own_folder() {
  Dl_info info{};
  static const char here = 0;
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string file = info.dli_fname;
  return file.substr(0, file.rfind('/') + 1);
}

bool has_gpu() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return false;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  return init != nullptr && count != nullptr && init(0) == 0 && count(&devices) == 0 && devices > 0;
}

void* load(const std::string& file, int scope) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | scope);
  if (library == nullptr) reason() = dlerror();
  return library;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const weir_suite_functions*
weir_suite_allocator() {
  if (!has_gpu()) {
    if (WEIR_SUITE_NEEDS_GPU) {
      reason() = WEIR_SUITE_NAME " needs a GPU";
      return nullptr;
    }
    if (load(own_folder() + "../libweir_no_cuda.so", RTLD_GLOBAL) == nullptr) return nullptr;
  }
  if (*WEIR_SUITE_SETTING != 0) setenv("PYTORCH_CUDA_ALLOC_CONF", WEIR_SUITE_SETTING, 1);
  void* const library = load(own_folder() + WEIR_SUITE_LIBRARY, RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  using Get = const weir_suite_functions*(const char* name);
  const auto get = reinterpret_cast<Get*>(dlsym(library, "weir_suite_allocator_called"));
  if (get == nullptr) reason() = dlerror();
  return get != nullptr ? get(WEIR_SUITE_NAME) : nullptr;
}

extern "C" __attribute__((visibility("default"))) const char* weir_suite_reason() {
  return reason().c_str();
}
