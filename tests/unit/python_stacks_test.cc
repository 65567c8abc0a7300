// SPDX-License-Identifier: Apache-2.0
// Stacks of Python code, over a Python that is functions of this file, found by their names as a
// real one's are: one interpreter, whose lock threads have to hold. (With a real one:
// tests/torch/process_test.py.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weir/recorder.h"

namespace weir {
namespace {

using testing::ElementsAre;

struct Object {
  int references = 1;
};
struct Text : Object {
  explicit Text(std::string text) : text(std::move(text)) {}
  std::string text;
};
struct Code : Object {
  Code(std::string function, std::string file)
      : function(std::move(function)), file(std::move(file)) {}
  std::string function, file;
};
struct Frame : Object {
  Frame(Code* code, int line, Frame* back) : code(code), line(line), back(back) {}
  Code* code;
  int line;
  Frame* back;
};

struct Python {
  std::mutex lock;  // the GIL
  bool initialized = true, finalizing = false;
  int taken = 0;    // how often it was asked to take its lock
  int without = 0;  // calls that need the lock, by threads that don't hold it
  int live_texts = 0;
  bool knows_qualified_names = true;
};
Python python;

struct Thread {
  bool holds_lock = false;
  Frame* frame = nullptr;  // the innermost
};
thread_local Thread this_thread;
thread_local Thread* met = nullptr;  // null: the thread never met Python

Thread* holder() {
  if (met == nullptr || !met->holds_lock) ++python.without;
  return met;
}

}  // namespace
}  // namespace weir

extern "C" {

int Py_IsInitialized() { return weir::python.initialized ? 1 : 0; }
int Py_IsFinalizing() { return weir::python.finalizing ? 1 : 0; }
void* PyGILState_GetThisThreadState() { return weir::met; }
void* PyThreadState_GetUnchecked() {
  return weir::met != nullptr && weir::met->holds_lock ? weir::met : nullptr;
}
int PyGILState_Ensure() {
  ++weir::python.taken;
  if (weir::met->holds_lock) return 0;
  weir::python.lock.lock();
  weir::met->holds_lock = true;
  return 1;
}
void PyGILState_Release(int state) {
  if (state == 0) return;
  weir::met->holds_lock = false;
  weir::python.lock.unlock();
}
void Py_IncRef(void* object) {
  (void)weir::holder();
  ++static_cast<weir::Object*>(object)->references;
}
void Py_DecRef(void* object) {
  (void)weir::holder();
  auto* const counted = static_cast<weir::Object*>(object);
  if (--counted->references > 0) return;
  --weir::python.live_texts;  // nothing else goes
  delete static_cast<weir::Text*>(counted);
}
void* PyEval_GetFrame() { return static_cast<weir::Object*>(weir::holder()->frame); }
}

namespace weir {
namespace {

Frame* frame_of(void* object) { return static_cast<Frame*>(static_cast<Object*>(object)); }
void* counted(Object* object) {
  if (object != nullptr) Py_IncRef(object);
  return object;
}

}  // namespace
}  // namespace weir

extern "C" {

void* PyFrame_GetBack(void* frame) { return weir::counted(weir::frame_of(frame)->back); }
void* PyFrame_GetCode(void* frame) { return weir::counted(weir::frame_of(frame)->code); }
int PyFrame_GetLineNumber(void* frame) { return weir::frame_of(frame)->line; }
int PyFrame_GetLasti(void* frame) { return weir::frame_of(frame)->line * 2; }
void* PyObject_GetAttrString(void* object, const char* name) {
  (void)weir::holder();
  const auto* const code = static_cast<weir::Code*>(static_cast<weir::Object*>(object));
  const bool is_qualified = std::strcmp(name, "co_qualname") == 0;
  if (is_qualified && !weir::python.knows_qualified_names) return nullptr;
  ++weir::python.live_texts;
  return static_cast<weir::Object*>(
      new weir::Text(std::strcmp(name, "co_filename") == 0 ? code->file : code->function));
}
const char* PyUnicode_AsUTF8AndSize(void* object, std::intptr_t* size) {
  const std::string& text = static_cast<weir::Text*>(static_cast<weir::Object*>(object))->text;
  *size = static_cast<std::intptr_t>(text.size());
  return text.c_str();
}
void* PyObject_ASCII(void*) { return nullptr; }
void PyErr_Fetch(void**, void**, void**) {}
void PyErr_Restore(void*, void*, void*) {}
void PyErr_Clear() {}
}

namespace weir {
namespace {

// Whatever was in a stack is kept for ever.
Code main_code("<module>", "train.py"), step_code("Trainer.step", "train.py");

class PythonStacks : public testing::Test {
 protected:
  void SetUp() override { met = &this_thread; }
  void TearDown() override {
    EXPECT_EQ(python.without, 0) << "Python was asked without its lock";
    EXPECT_EQ(python.live_texts, 0);
    for (const Frame* const frame : {&step_, &again_, &main_}) EXPECT_EQ(frame->references, 1);
    EXPECT_FALSE(this_thread.holds_lock);
    this_thread = {};
    met = nullptr;
  }
  // As within a Python function that calls into C++.
  template <class Work>
  static auto with_lock(Work&& work) {
    const std::lock_guard lock(python.lock);
    this_thread.holds_lock = true;
    auto result = work();
    this_thread.holds_lock = false;
    return result;
  }
  static std::uint32_t here() { return python_stacks().here(); }
  static bool is_cpp(std::uint32_t stack) {
    for (const RecordedFrame& frame : python_stacks().frames(stack)) {
      if (frame.file == "train.py") return false;
    }
    return stack != 0;
  }

  Frame main_{&main_code, 7, nullptr};
  Frame step_{&step_code, 21, &main_}, again_{&step_code, 22, &main_};
};

const RecordedFrame kMain{"<module>", "train.py", 7};

TEST_F(PythonStacks, OfAThreadThatHoldsTheLockAreTakenAtOnce) {
  this_thread.frame = &step_;
  const int before = python.taken;
  const std::uint32_t stack = with_lock(here);
  EXPECT_EQ(with_lock(here), stack);
  EXPECT_EQ(python.taken, before);
  EXPECT_THAT(python_stacks().frames(stack),
              ElementsAre(RecordedFrame{"Trainer.step", "train.py", 21}, kMain));
  this_thread.frame = &again_;
  const std::uint32_t other = with_lock(here);
  EXPECT_NE(other, stack);
  EXPECT_THAT(python_stacks().frames(other),
              ElementsAre(RecordedFrame{"Trainer.step", "train.py", 22}, kMain));
}

TEST_F(PythonStacks, OfAThreadThatLetGoOfTheLockAreTakenWithIt) {
  this_thread.frame = &step_;
  const int before = python.taken;
  const std::uint32_t stack = here();
  EXPECT_EQ(python.taken, before + 1);
  EXPECT_EQ(with_lock(here), stack);
  EXPECT_THAT(python_stacks().frames(stack),
              ElementsAre(RecordedFrame{"Trainer.step", "train.py", 21}, kMain));
}

TEST_F(PythonStacks, AreOfThe128FunctionsThatWereCalledLast) {
  // Functions that no other stack has: each is met here for the first time.
  static std::list<Code> codes;
  std::list<Frame> frames;
  Frame* innermost = nullptr;
  for (int i = 0; i < 130; ++i) {
    Code& code = codes.emplace_back("f" + std::to_string(i), "deep.py");
    innermost = &frames.emplace_back(&code, i, innermost);
  }
  this_thread.frame = innermost;
  const std::vector<RecordedFrame> recorded = python_stacks().frames(with_lock(here));
  ASSERT_EQ(recorded.size(), 128u);
  EXPECT_EQ(recorded.front(), (RecordedFrame{"f129", "deep.py", 129}));
  EXPECT_EQ(recorded.back(), (RecordedFrame{"f2", "deep.py", 2}));
  for (const Frame& frame : frames) EXPECT_EQ(frame.references, 1);
  this_thread.frame = innermost->back;
  EXPECT_EQ(python_stacks().frames(with_lock(here)).back().function, "f1");
}

// Python says -1 of a place without one.
TEST_F(PythonStacks, HaveNoLineWherePythonKnowsNone) {
  static Code code("<generated>", "generated.py");
  Frame frame(&code, -1, nullptr);
  this_thread.frame = &frame;
  EXPECT_THAT(python_stacks().frames(with_lock(here)),
              ElementsAre(RecordedFrame{"<generated>", "generated.py", 0}));
}

TEST_F(PythonStacks, BeforePython311NamesAreNotQualified) {
  python.knows_qualified_names = false;
  static Code code("step", "train.py");
  Frame frame(&code, 3, nullptr);
  this_thread.frame = &frame;
  EXPECT_THAT(python_stacks().frames(with_lock(here)),
              ElementsAre(RecordedFrame{"step", "train.py", 3}));
  EXPECT_EQ(frame.references, 1);
  python.knows_qualified_names = true;
}

TEST_F(PythonStacks, WhereNoPythonRunsAreThoseOfCpp) {
  EXPECT_TRUE(is_cpp(with_lock(here))) << "no function of Python's";
  this_thread.frame = &main_;
  const int before = python.taken;
  for (bool* const state : {&python.finalizing, &python.initialized}) {
    *state = !*state;
    EXPECT_TRUE(is_cpp(here()));
    *state = !*state;
  }
  std::uint32_t of_another = 0;
  std::thread([&] { of_another = here(); }).join();  // which never met Python
  EXPECT_TRUE(is_cpp(of_another));
  EXPECT_EQ(python.taken, before);
}

// The last of this file: there is no way back.
TEST_F(PythonStacks, OncePythonEndsAreTheirsWhoHoldTheLockAndItIsNotTaken) {
  python_ends();
  this_thread.frame = &main_;
  const int before = python.taken;
  EXPECT_TRUE(is_cpp(here()));
  EXPECT_THAT(python_stacks().frames(with_lock(here)), ElementsAre(kMain));
  EXPECT_EQ(python.taken, before);
}

}  // namespace
}  // namespace weir
