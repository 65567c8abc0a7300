// SPDX-License-Identifier: Apache-2.0
// The calls of a stack that a person wants to read: those of their own code.
//
// A stack that PyTorch recorded has up to 250 frames, most of which are CPython's, PyTorch's and
// the unwinder's. `calls_of` keeps the program's own, names the stack by the innermost of these,
// and remembers which operator of PyTorch's asked for the memory. page/stack_names.js makes
// labels of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/recording.h"

namespace weir {

// Frames that PyTorch's own viewer leaves out: the unwinder's, the interpreter's, the dispatcher's.
// Source: _frame_filter() in torch/cuda/_memory_viz.py, PyTorch 2.11.
bool is_noise(const RecordedFrame& frame);

// A file of Python's rather than of C++.
bool is_python(const RecordedFrame& frame);

// `file` with its last two folders, whichever system it is of: whose home it lies in is nobody's
// business. "/x/y/project/src/net.py" -> "project/src/net.py".
std::string short_path(const std::string& file);

// "softmax (nn.py:6)": without folders; "?": nothing is known.
std::string frame_text(const RecordedFrame& frame);

// What a stack of the autograd engine's is called, or the file that its node is said to be in.
inline constexpr std::string_view kBackwardPass = "backward pass";

struct Calls {
  // Innermost first. Python frames outside PyTorch and the standard library, if the stack has one;
  // else a made up one, "BmmBackward0 (backward pass)"; else frames of C++ outside PyTorch; else
  // all.
  std::vector<std::uint32_t> frames;
  // The innermost frame that is the user's own, not an installed package's: what the stack is
  // called. An index into `frames`; 0 if none is.
  std::uint32_t named = 0;
  // What `named` called: a function of an installed package, or an operator: "softmax, exp".
  std::string via;

  friend bool operator==(const Calls&, const Calls&) = default;
};

// What memory is for, as the functions of PyTorch's that asked for it tell.
enum class Purpose : std::uint8_t {
  unknown,
  weights,    // made by a module's constructor, moved, loaded; or kEarlyBlocks
  gradients,  // made by a backward pass, with what it needs in passing
  optimizer,
  workspace,    // of cuBLAS and the like
  activations,  // all else
};
inline constexpr int kPurposes = static_cast<int>(Purpose::activations) + 1;
std::string_view name_of(Purpose purpose);

// What blocks without a stack are called where others have one: those that were there before the
// recording began, and stayed through all of it; and those that were freed in it.
inline constexpr std::string_view kEarlyBlocks = "there before the recording began";
inline constexpr std::string_view kPassingBlocks = "from before the recording";
// Of a file without a history.
inline constexpr std::string_view kUnrecordedBlocks = "allocated while nothing was recorded";

// Stacks that differ only in frames that nobody wants to read are one.
struct CallStacks {
  std::vector<RecordedFrame> frames;  // those of the recording, and made up ones
  std::vector<Calls> calls;
  std::vector<std::uint32_t> of_stack;  // by stack: an index into `calls`
  std::vector<Purpose> purposes;        // by stack; empty: no frame is of PyTorch's

  const Calls& of(std::uint32_t stack) const {
    return calls[stack < of_stack.size() ? of_stack[stack] : of_stack.front()];
  }
};
CallStacks calls_of(std::vector<RecordedFrame> frames,
                    const std::vector<std::vector<std::uint32_t>>& stacks);

// As text, innermost first, without folders; the frame that names the stack has `via` behind it.
std::vector<std::string> calls_text(const CallStacks& stacks, const Calls& calls);

}  // namespace weir
