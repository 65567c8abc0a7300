// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/program.h"

#include <sstream>

namespace weir::contract {
namespace {

using Kind = Step::Kind;

std::string text(Bytes bytes) {
  if (bytes.count != 0 && bytes % 1_MiB == 0_B) return std::to_string(bytes / 1_MiB) + " MiB";
  if (bytes.count != 0 && bytes % 1_KiB == 0_B) return std::to_string(bytes / 1_KiB) + " KiB";
  return std::to_string(bytes.count) + " bytes";
}

std::string text(Nanoseconds time) { return std::to_string(time.count / 1000) + " us"; }

std::string stream(std::uint32_t number) {
  return number == 0 ? "the default stream" : "stream " + std::to_string(number);
}

std::string named(const char* what, std::uint32_t number) {
  return std::string(what) + " " + std::to_string(number);
}

std::string describe_kernel(const Step& step) {
  std::string line = "launch a kernel of " + text(step.duration) + " on " + stream(step.stream);
  const char* before = " that ";
  for (const Use& use : step.uses) {
    line += before + std::string(use.write ? "writes " : "reads ") + named("tensor", use.tensor);
    before = " and ";
  }
  if (step.flag != 0) line += " and waits for " + named("flag", step.flag);
  return line;
}

}  // namespace

const char* name_of(Kind kind) {
  static constexpr std::array<const char*, Step::kKinds> kNames = {"make_stream",
                                                                   "destroy_stream",
                                                                   "allocate",
                                                                   "kernel",
                                                                   "order",
                                                                   "record_event",
                                                                   "wait_event",
                                                                   "synchronize_event",
                                                                   "synchronize_stream",
                                                                   "synchronize_device",
                                                                   "record_stream",
                                                                   "drop",
                                                                   "empty_cache",
                                                                   "set_limit",
                                                                   "set_caching",
                                                                   "make_pool",
                                                                   "enter_pool",
                                                                   "leave_pool",
                                                                   "drop_pool",
                                                                   "begin_capture",
                                                                   "end_capture",
                                                                   "pause_pool",
                                                                   "resume_pool",
                                                                   "fail_capture",
                                                                   "refuse_capture",
                                                                   "replay",
                                                                   "drop_graph",
                                                                   "begin_raw_capture",
                                                                   "end_raw_capture",
                                                                   "save_pool",
                                                                   "restore_pool",
                                                                   "set_flag",
                                                                   "busy"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string describe(const Step& step) {
  const std::string on = stream(step.stream);
  const std::string tensor = named("tensor", step.tensor);
  const std::string graph = named("graph", step.graph);
  const std::string pool = named("pool", step.pool);
  const std::string thread = named("thread", step.thread);
  switch (step.kind) {
    case Kind::make_stream:
      return "create " + on + " outside PyTorch";
    case Kind::destroy_stream:
      return "destroy " + on;
    case Kind::allocate:
      return thread + " allocates " + tensor + " (" + text(step.bytes) + ") on " +
             (step.on ? "the bare handle of " : "") + on;
    case Kind::kernel:
      return describe_kernel(step);
    case Kind::order:
      return "make " + on + " wait for " + stream(step.other);
    case Kind::record_event:
      return "record " + named("event", step.event) + " on " + on;
    case Kind::wait_event:
      return "make " + on + " wait for " + named("event", step.event);
    case Kind::synchronize_event:
      return "the host waits for " + named("event", step.event);
    case Kind::synchronize_stream:
      return "the host waits for " + on;
    case Kind::synchronize_device:
      return "the host waits for the device";
    case Kind::record_stream:
      return tensor + ".record_stream(" + on + ")";
    case Kind::drop:
      return thread + " drops " + tensor;
    case Kind::empty_cache:
      return "empty_cache()";
    case Kind::set_limit:
      return step.bytes == 0_B ? "lift the memory limit"
                               : "set the memory limit to " + text(step.bytes);
    case Kind::set_caching:
      return std::string("switch caching ") + (step.on ? "on" : "off");
    case Kind::make_pool:
      return "create " + pool + " (MemPool)";
    case Kind::enter_pool:
      return thread + " starts to allocate from " + pool + " (current stream: " + on + ")";
    case Kind::leave_pool:
      return thread + " stops allocating from " + pool;
    case Kind::drop_pool:
      return "drop the MemPool object of " + pool;
    case Kind::begin_capture:
      return thread + " begins to capture " + graph + " on " + on + " with " + pool;
    case Kind::end_capture:
      return thread + " ends the capture of " + graph;
    case Kind::pause_pool:
      return thread + " stops allocating from the pool of " + graph + " within its capture";
    case Kind::resume_pool:
      return thread + " allocates from the pool of " + graph + " again, whatever the stream" +
             (step.on ? "" : ", and keeps the use of the pool that this adds");
    case Kind::fail_capture:
      return thread + " makes a call that fails the capture of " + graph;
    case Kind::refuse_capture:
      return thread + " fails to begin to capture " + graph + " on " + on + " with " + pool +
             (step.on ? ": the driver refuses" : ": the stream is being captured");
    case Kind::replay:
      return "replay " + graph + " on " + on;
    case Kind::drop_graph:
      return "reset " + graph;
    case Kind::begin_raw_capture:
      return "another library begins to capture " + graph + " on " + on;
    case Kind::end_raw_capture:
      return "the other library ends the capture of " + graph;
    case Kind::save_pool:
      return "save the state of " + pool;
    case Kind::restore_pool:
      return "restore the state of " + pool;
    case Kind::set_flag:
      return "the host sets " + named("flag", step.flag);
    case Kind::busy:
      return "the host is busy for " + text(step.duration);
  }
  return "";
}

std::string name_of(const Program& program) {
  if (program.seed == 0) return program.name;
  return "seed " + std::to_string(program.seed) + (program.has_flags ? " with --flags" : "");
}

std::string describe(const Program& program) {
  std::ostringstream lines;
  lines << name_of(program) << ": " << program.steps.size() << " steps\n";
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    lines << "  " << i << ". " << describe(program.steps[i]) << "\n";
  }
  return lines.str();
}

}  // namespace weir::contract
