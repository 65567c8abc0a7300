// SPDX-License-Identifier: Apache-2.0
#include "observe/python_api.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

namespace weir {
namespace {

template <class Function>
bool find(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

}  // namespace

const PythonApi* PythonApi::get() {
  static std::atomic<const PythonApi*> found{nullptr};
  if (const PythonApi* const known = found.load(std::memory_order_acquire)) return known;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  static PythonApi api;
  if (found.load(std::memory_order_relaxed) == nullptr && api.find_functions()) {
    found.store(&api, std::memory_order_release);
  }
  return found.load(std::memory_order_relaxed);
}

bool PythonApi::find_functions() {
  // The first is not there: nor is Python.
  if (!find(is_initialized, "Py_IsInitialized")) return false;
  (void)find(frame_last_instruction, "PyFrame_GetLasti");
  unsigned long* version = nullptr;  // there since 3.11
  collects_in_walks = find(version, "Py_Version") && (*version >> 16) == 0x030b;
  return (find(is_finalizing, "Py_IsFinalizing") || find(is_finalizing, "_Py_IsFinalizing")) &&
         (find(current_thread, "PyThreadState_GetUnchecked") ||
          find(current_thread, "_PyThreadState_UncheckedGet")) &&
         find(this_thread, "PyGILState_GetThisThreadState") && find(ensure, "PyGILState_Ensure") &&
         find(release, "PyGILState_Release") && find(incref, "Py_IncRef") &&
         find(decref, "Py_DecRef") && find(current_frame, "PyEval_GetFrame") &&
         find(frame_back, "PyFrame_GetBack") && find(frame_code, "PyFrame_GetCode") &&
         find(frame_line, "PyFrame_GetLineNumber") &&
         find(attribute_of, "PyObject_GetAttrString") && find(as_utf8, "PyUnicode_AsUTF8AndSize") &&
         find(as_ascii, "PyObject_ASCII") && find(fetch_error, "PyErr_Fetch") &&
         find(restore_error, "PyErr_Restore") && find(clear_error, "PyErr_Clear") &&
         (!collects_in_walks ||
          (find(gc_enable, "PyGC_Enable") && find(gc_disable, "PyGC_Disable")));
}

std::string PythonApi::function_of(Object code) const {
  return text_of(code, "co_qualname", "co_name");  // the first is there since 3.11
}

std::string PythonApi::file_of(Object code) const {
  return text_of(code, "co_filename", "co_filename");
}

std::string PythonApi::text_of(Object code, const char* attribute, const char* otherwise) const {
  Object type = nullptr, value = nullptr, traceback = nullptr;
  fetch_error(&type, &value, &traceback);
  Object text = attribute_of(code, attribute);
  if (text == nullptr) {
    clear_error();
    text = attribute_of(code, otherwise);
  }
  std::string found = text == nullptr ? "?" : utf8(text);
  if (text != nullptr) decref(text);
  clear_error();
  restore_error(type, value, traceback);
  return found;
}

// What is no Unicode (file names with other bytes) is shown escaped.
std::string PythonApi::utf8(Object text) const {
  std::intptr_t size = 0;
  if (const char* const bytes = as_utf8(text, &size)) {
    return {bytes, static_cast<std::size_t>(size)};
  }
  clear_error();
  Object const escaped = as_ascii(text);
  if (escaped == nullptr) return "?";
  const char* const bytes = as_utf8(escaped, &size);
  std::string found = bytes == nullptr ? "?" : std::string(bytes, static_cast<std::size_t>(size));
  decref(escaped);
  return found;
}

}  // namespace weir
