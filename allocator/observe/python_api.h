// SPDX-License-Identifier: Apache-2.0
// The functions of CPython's C API that a walk over frames needs, found by name in the process.
//
// Neither Python's headers nor its library are needed, and one build fits every Python from 3.9 on:
// all functions are documented ones, but for two that the older versions have under a private name
// only (_Py_IsFinalizing, _PyThreadState_UncheckedGet), and those versions change no more.
//
// Not by way of PyTorch (torch::CapturedTraceback): that is in libtorch_python, whose C++ interface
// changes with each release, and there is none under the pluggable library.
#pragma once

#include <cstdint>
#include <string>

namespace weir {

class PythonApi {
 public:
  using Object = void*;

  // Null: the process has no Python of a version that will do. Found at the first call that finds
  // one, since Python may come into a process late.
  static const PythonApi* get();

  // Runs between its beginning and its end?
  bool runs() const { return is_initialized() != 0 && is_finalizing() == 0; }
  // Has the calling thread met Python, ever? Needs no lock.
  bool knows_thread() const { return this_thread() != nullptr; }
  // Does the calling thread hold the lock (the GIL), as its own thread state?
  bool holds_lock() const {
    Object const current = current_thread();
    return current != nullptr && current == this_thread();
  }
  // PyGILState_Ensure() and PyGILState_Release().
  int take_lock() const { return ensure(); }
  void give_lock(int state) const { release(state); }

  // Calls visit(frame, code, place) for the calling thread's frames, innermost first, until it
  // returns false. `place` tells the frame's lines apart, in its code. Runs no Python, not even a
  // garbage collection. With the lock held.
  template <class Visit>
  void for_each_frame(Visit&& visit) const {
    const bool collects = pause_collection();
    Object frame = current_frame();
    if (frame != nullptr) incref(frame);
    bool more = true;
    while (frame != nullptr) {
      Object const code = frame_code(frame);
      more = more && visit(frame, code, place_of(frame));
      decref(code);  // which the frame keeps
      Object const back = more ? frame_back(frame) : nullptr;
      decref(frame);
      frame = back;
    }
    resume_collection(collects);
  }
  int line_of(Object frame) const { return frame_line(frame); }
  void keep(Object object) const { incref(object); }
  // Of a code object. With the lock held; a pending exception stays what it is.
  std::string function_of(Object code) const;
  std::string file_of(Object code) const;

 private:
  bool find_functions();
  int place_of(Object frame) const {
    return frame_last_instruction != nullptr ? frame_last_instruction(frame) : frame_line(frame);
  }
  bool pause_collection() const { return collects_in_walks && gc_disable() != 0; }
  void resume_collection(bool collects) const {
    if (collects) (void)gc_enable();
  }
  std::string text_of(Object code, const char* attribute, const char* otherwise) const;
  std::string utf8(Object text) const;

  int (*is_initialized)() = nullptr;
  int (*is_finalizing)() = nullptr;
  Object (*this_thread)() = nullptr;
  Object (*current_thread)() = nullptr;
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  void (*incref)(Object) = nullptr;
  void (*decref)(Object) = nullptr;
  Object (*current_frame)() = nullptr;
  Object (*frame_back)(Object) = nullptr;
  Object (*frame_code)(Object) = nullptr;
  int (*frame_line)(Object) = nullptr;
  int (*frame_last_instruction)(Object) = nullptr;  // null: before 3.11
  Object (*attribute_of)(Object, const char*) = nullptr;
  const char* (*as_utf8)(Object, std::intptr_t*) = nullptr;
  Object (*as_ascii)(Object) = nullptr;
  void (*fetch_error)(Object*, Object*, Object*) = nullptr;
  void (*restore_error)(Object, Object, Object) = nullptr;
  void (*clear_error)() = nullptr;
  int (*gc_enable)() = nullptr;
  int (*gc_disable)() = nullptr;
  // In 3.11 a frame becomes an object when somebody asks for it, and making an object may collect
  // garbage, which runs whatever finalizers there are. Before, frames were objects; since, only the
  // interpreter's loop collects.
  bool collects_in_walks = false;
};

}  // namespace weir
