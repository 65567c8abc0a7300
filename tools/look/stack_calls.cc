// SPDX-License-Identifier: Apache-2.0
#include "look/stack_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace weir {
namespace {

using Frames = std::span<const std::uint32_t>;

bool has_one_of(std::string_view text, std::span<const std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  });
}

std::string with_slashes(std::string file) {
  std::replace(file.begin(), file.end(), '\\', '/');
  return file;
}

bool is_installed(const std::string& file) {
  constexpr std::array<std::string_view, 2> kFolders = {"site-packages/", "dist-packages/"};
  return has_one_of(file, kFolders);
}

// Of PyTorch, or of the standard library: it allocates on behalf of its caller.
bool is_runtime(const RecordedFrame& frame) {
  constexpr std::array<std::string_view, 7> kTorch = {
      "-packages/torch/", "-packages/triton/",         "-packages/functorch/", "/pytorch/torch/",
      "<eval_with_key>",  "-packages/torch_tensorrt/", "/torchinductor_"};
  constexpr std::array<std::string_view, 9> kStandard = {
      "<frozen ",           "/lib/runpy.py",     "/lib/threading.py",
      "/lib/contextlib.py", "/lib/functools.py", "/lib/multiprocessing/",
      "/lib/concurrent/",   "/lib/asyncio/",     "/lib/socketserver.py"};
  const std::string file = with_slashes(frame.file);
  if (has_one_of(file, kTorch) || has_one_of(file, kStandard)) return true;
  return file.find("/lib/python3") != std::string::npos && !is_installed(file);
}

bool is_torch_cpp(const RecordedFrame& frame) {
  constexpr std::array<std::string_view, 5> kNames = {
      "at::", "c10::", "torch::", "pybind11::", "THPVariable_"};
  return has_one_of(frame.function, kNames);
}

// The word that follows `prefix` in a C++ name: of "at::_ops::exp::call(...)" "exp".
std::string word_after(std::string_view name, std::string_view prefix) {
  const std::size_t at = name.find(prefix);
  if (at == std::string_view::npos) return {};
  name.remove_prefix(at + prefix.size());
  const auto end = std::find_if(name.begin(), name.end(), [](char c) {
    return !(c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
             (c >= 'A' && c <= 'Z'));
  });
  return std::string(name.begin(), end);
}

// "add_Tensor" and "sum_dim_IntList" are overloads of "add" and "sum_dim".
std::string without_overload(std::string name) {
  for (std::size_t i = 1; i + 1 < name.size(); ++i) {
    if (name[i] == '_' && name[i + 1] >= 'A' && name[i + 1] <= 'Z') name.resize(i);
  }
  return name;
}

// What PyTorch calls between a module's call and its forward().
bool is_between_calls(std::string_view name) {
  constexpr std::string_view kModule = "Module.";
  if (name.starts_with(kModule)) name.remove_prefix(kModule.size());
  return name == "_call_impl" || name == "_wrapped_call_impl";
}

// Whether PyTorch's Python or C++ had to do with the stack.
bool is_torch(const RecordedFrame& frame) {
  return is_torch_cpp(frame) || with_slashes(frame.file).find("/torch/") != std::string::npos;
}

// What one frame tells of the memory that it asked for; unknown: nothing.
Purpose told_by(const RecordedFrame& frame) {
  const std::string_view whole = frame.function;
  const std::string_view function = whole.substr(whole.rfind('.') + 1);  // without its class
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), function) != names.end();
  };
  constexpr std::array<std::string_view, 2> kWorkspace = {"workspace", "Workspace"};
  constexpr std::array<std::string_view, 4> kGradients = {
      kBackwardPass, "torch::autograd::Engine::", "AccumulateGrad", "c10d::Reducer"};
  if (whole == kEarlyBlocks) return Purpose::weights;
  if (has_one_of(whole, kWorkspace)) return Purpose::workspace;
  if (has_one_of(whole, kGradients) || is_one_of({"backward", "_engine_run_backward"})) {
    return Purpose::gradients;
  }
  const std::string file = with_slashes(frame.file);
  if (file.find("/optim/") != std::string::npos) return Purpose::optimizer;
  // DataParallel copies the weights to every device at each step.
  if (file.ends_with("/nn/parallel/replicate.py")) return Purpose::weights;
  if (is_one_of({"_call_impl", "_wrapped_call_impl"})) return Purpose::activations;
  const bool makes = is_one_of(
      {"__init__", "_apply", "convert", "reset_parameters", "load_state_dict", "from_pretrained"});
  return makes ? Purpose::weights : Purpose::unknown;
}

class Folder {
 public:
  explicit Folder(std::vector<RecordedFrame> frames) {
    for (const RecordedFrame& frame : frames) {
      const bool python = is_python(frame);
      purposes_.push_back(told_by(frame));
      has_torch_ = has_torch_ || is_torch(frame);
      kinds_.push_back(is_noise(frame)                                    ? Kind::noise
                       : python && is_runtime(frame)                      ? Kind::runtime
                       : python && is_installed(with_slashes(frame.file)) ? Kind::package
                       : python                                           ? Kind::own
                       : is_torch_cpp(frame)                              ? Kind::torch_cpp
                                                                          : Kind::cpp);
    }
    out_.frames = std::move(frames);
  }

  void add(Frames stack) {
    Calls calls = fold(stack);
    const std::string via = std::exchange(calls.via, {});
    const auto next = static_cast<std::uint32_t>(out_.calls.size());
    const auto [known, added] = known_.try_emplace(calls.frames, next);
    if (added) out_.calls.push_back(std::move(calls));
    out_.of_stack.push_back(known->second);
    if (has_torch_) out_.purposes.push_back(purpose_of(stack));
    add_via(out_.calls[known->second].via, via);
  }

  CallStacks finish() && { return std::move(out_); }

 private:
  enum class Kind : std::uint8_t { noise, runtime, package, own, torch_cpp, cpp };
  static constexpr std::size_t kMostVia = 40;

  // Stacks that are folded into one may have come through several operators.
  static void add_via(std::string& into, const std::string& via) {
    if (via.empty() || (", " + into + ",").find(", " + via + ",") != std::string::npos) return;
    if (into.ends_with("...")) return;
    if (into.size() + via.size() > kMostVia && !into.empty()) {
      into += ", ...";
    } else {
      into += (into.empty() ? "" : ", ") + via;
    }
  }

  // The innermost frame that tells of it decides: an optimizer's step may call a whole forward
  // pass.
  Purpose purpose_of(Frames stack) const {
    for (const std::uint32_t frame : stack) {
      if (purposes_[frame] != Purpose::unknown) return purposes_[frame];
    }
    if (stack.empty()) return Purpose::unknown;
    const std::string& function = out_.frames[stack.front()].function;
    const bool is_known = function != kPassingBlocks && function != kUnrecordedBlocks;
    return is_known ? Purpose::activations : Purpose::unknown;
  }

  Calls fold(Frames stack) {
    Calls calls;
    const auto take = [&](auto&& wanted) {
      for (const std::uint32_t frame : stack) {
        if (wanted(kinds_[frame])) calls.frames.push_back(frame);
      }
      return !calls.frames.empty();
    };
    if (take([](Kind kind) { return kind == Kind::own || kind == Kind::package; })) {
      const auto own =
          std::find_if(calls.frames.begin(), calls.frames.end(),
                       [&](std::uint32_t frame) { return kinds_[frame] == Kind::own; });
      if (own != calls.frames.end())
        calls.named = static_cast<std::uint32_t>(own - calls.frames.begin());
      calls.via = calls.named > 0 ? frame_text(out_.frames[calls.frames.front()]) : verb(stack);
      return calls;
    }
    if (const std::optional<std::string> node = backward_node(stack)) {
      const std::string pass(kBackwardPass);
      calls.frames.push_back(node->empty() ? made_up(pass, "") : made_up(*node, pass));
      return calls;
    }
    const auto is_any = [](Kind kind) { return kind != Kind::noise; };
    if (take([](Kind kind) { return kind == Kind::runtime; }) ||
        take([](Kind kind) { return kind == Kind::cpp; }) || take(is_any)) {
      return calls;
    }
    calls.frames.assign(stack.begin(), stack.end());
    return calls;
  }

  // The operator that Python called; if there is no C++ in the stack, PyTorch's innermost function.
  std::string verb(Frames stack) const {
    std::string operation, function;
    for (const std::uint32_t number : stack) {
      const RecordedFrame& frame = out_.frames[number];
      const Kind kind = kinds_[number];
      if (kind == Kind::own || kind == Kind::package) break;
      if (kind == Kind::runtime) {
        if (function.empty() && !is_between_calls(frame.function)) function = frame.function;
        if (frame.function == "_engine_run_backward") return "backward";
        continue;
      }
      if (!function.empty()) continue;  // what Python called to allocate is known
      std::string name = word_after(frame.function, "THPVariable_");
      if (name.empty()) name = without_overload(word_after(frame.function, "at::_ops::"));
      if (!name.empty()) operation = name;
    }
    return operation.empty() ? function : operation;
  }

  // None: no frame of the autograd engine's; "": the engine itself allocated.
  std::optional<std::string> backward_node(Frames stack) const {
    std::optional<std::string> node;
    for (const std::uint32_t number : stack) {
      const std::string& name = out_.frames[number].function;
      if (name.find("torch::autograd::Engine::") != std::string::npos) return node ? node : "";
      std::string found = word_after(name, "torch::autograd::generated::");
      found = found.substr(0, found.find("_apply_function"));
      if (name.find("::AccumulateGrad::apply") != std::string::npos) found = "AccumulateGrad";
      if (found == "AccumulateGrad" || found.find("Backward") != std::string::npos) node = found;
    }
    return std::nullopt;
  }

  std::uint32_t made_up(const std::string& function, const std::string& file) {
    const auto [known, added] =
        made_up_.try_emplace(function, static_cast<std::uint32_t>(out_.frames.size()));
    if (added) {
      out_.frames.push_back({.function = function, .file = file});
      kinds_.push_back(Kind::cpp);
    }
    return known->second;
  }

  CallStacks out_;
  std::vector<Kind> kinds_;        // by frame
  std::vector<Purpose> purposes_;  // likewise, of the recording's
  bool has_torch_ = false;
  std::map<std::vector<std::uint32_t>, std::uint32_t> known_;
  std::map<std::string, std::uint32_t> made_up_;
};

}  // namespace

std::string_view name_of(Purpose purpose) {
  constexpr std::array<std::string_view, kPurposes> kNames = {
      "unknown", "weights", "gradients", "optimizer state", "workspace", "activations"};
  return kNames[static_cast<std::size_t>(purpose)];
}

bool is_noise(const RecordedFrame& frame) {
  constexpr std::array<std::string_view, 7> kFunctions = {
      "unwind::unwind",  "CapturedTraceback::gather",
      "gather_with_cpp", "__libc_start_main",
      "PyEval_",         "PyObject_",
      "PyFunction_"};
  constexpr std::array<std::string_view, 7> kFiles = {
      "pythonrun.c",    "Modules/main.c", "Objects/call.c",    "Objects/methodobject.c",
      "pycore_ceval.h", "ceval.c",        "cpython/abstract.h"};
  constexpr std::array<std::string_view, 3> kDispatcher = {"core/boxing", "/Register",
                                                           "/Redispatch"};
  // A program may have functions of such names: on_PyObject_change().
  if (is_python(frame)) return false;
  return frame.function == "_start" || has_one_of(frame.function, kFunctions) ||
         has_one_of(frame.file, kFiles) ||
         (is_torch_cpp(frame) && has_one_of(frame.file, kDispatcher));
}

bool is_python(const RecordedFrame& frame) {
  return frame.file.ends_with(".py") || frame.file.starts_with('<');
}

std::string short_path(const std::string& file) {
  std::string path = with_slashes(file);
  std::size_t at = path.size();
  for (int folders = 0; folders <= 2 && at != std::string::npos; ++folders) {
    at = at == 0 ? std::string::npos : path.rfind('/', at - 1);
  }
  std::size_t from = at == std::string::npos ? 0 : at + 1;
  for (const std::string_view homes : {"/home/", "/Users/"}) {  // nobody is named
    const std::size_t home = path.find(homes);
    const std::size_t name = home <= 2 ? path.find('/', home + homes.size()) : std::string::npos;
    if (name != std::string::npos) from = std::max(from, name + 1);
  }
  return path.substr(from);
}

std::string frame_text(const RecordedFrame& frame) {
  const std::string file = frame.file.substr(frame.file.find_last_of("/\\") + 1);
  if (frame.function.empty() && file.empty()) return "?";
  if (file.empty()) return frame.function;
  const std::string place = frame.line == 0 ? file : fmt::format("{}:{}", file, frame.line);
  return frame.function.empty() ? place : fmt::format("{} ({})", frame.function, place);
}

CallStacks calls_of(std::vector<RecordedFrame> frames,
                    const std::vector<std::vector<std::uint32_t>>& stacks) {
  const std::size_t count = frames.size();
  Folder folder(std::move(frames));
  for (std::vector<std::uint32_t> stack : stacks) {
    std::erase_if(stack, [&](std::uint32_t frame) { return frame >= count; });
    folder.add(stack);
  }
  return std::move(folder).finish();
}

std::vector<std::string> calls_text(const CallStacks& stacks, const Calls& calls) {
  std::vector<std::string> text;
  for (std::size_t i = calls.named; i < calls.frames.size(); ++i) {
    text.push_back(frame_text(stacks.frames[calls.frames[i]]));
  }
  if (!calls.via.empty()) text.front() += " · " + calls.via;
  return text;
}

}  // namespace weir
