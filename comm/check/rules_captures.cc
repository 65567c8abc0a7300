#include <algorithm>

#include "comm/check/rules.h"
#include "comm/check/tree.h"
#include "comm/numbers.h"

namespace weir::check {
namespace {

// Of CUDA 12.9, from which order between communicators holds in captures without serialising them.
constexpr int kDriverOfOrder = 575;

}  // namespace

void cumem_disabled(const Machine&, const Settings& settings, Findings& findings) {
  if (settings.number("NCCL_CUMEM_ENABLE") != 0) return;
  say(findings, Severity::warning, "NCCL_CUMEM_ENABLE=0: memory is shared by cudaIpc calls",
      "They are not legal in a capture, and segments of Weir's can't be registered.",
      "Leave it out.");
}

// Weir refuses it in the environment. Where it stands in a file, Weir sets 0 in the environment,
// which wins.
void graph_register(const Machine&, const Settings& settings, Findings& findings) {
  if (settings.number("NCCL_GRAPH_REGISTER").value_or(0) == 0) return;
  const auto setting =
      std::find_if(settings.list.begin(), settings.list.end(),
                   [](const Setting& each) { return each.name == "NCCL_GRAPH_REGISTER"; });
  const bool refused = setting->source == "environment";
  say(findings, refused ? Severity::error : Severity::warning,
      shown(settings, "NCCL_GRAPH_REGISTER") + ": NCCL registers the buffers of captures itself",
      "It takes the whole physical handle under a buffer, on some ranks and not on others where "
      "buffers straddle handles; peers keep that memory until the graph is gone. Weir's pools move "
      "memory between addresses meanwhile.",
      "Set NCCL_GRAPH_REGISTER=0, and register segments explicitly.");
}

void runtime_connect(const Machine&, const Settings& settings, Findings& findings) {
  if (settings.number("NCCL_RUNTIME_CONNECT").value_or(0) == 0) return;
  say(findings, Severity::warning,
      shown(settings, "NCCL_RUNTIME_CONNECT") + ": ranks connect at the first collective",
      "If that one is captured, connecting makes calls that are not legal in a capture: "
      "\"operation "
      "not permitted when stream is capturing\".",
      "Set NCCL_RUNTIME_CONNECT=0.");
}

void launch_order(const Machine& machine, const Settings& settings, Findings& findings) {
  const std::optional<std::int64_t> order = settings.number("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (order.value_or(0) == 0) return;
  say(findings, Severity::note,
      shown(settings, "NCCL_LAUNCH_ORDER_IMPLICIT") + ": captured collectives are slower",
      "Each waits for the one before in nodes of its own: 5 to 8 us more for each in a graph. And "
      "threads that use different communicators of a GPU at once are an error.",
      "Leave it at 0, unless communicators whose ranks use them in different orders wait for each "
      "other for ever.");
  const std::optional<std::int64_t> driver =
      number_in(std::string_view(machine.driver).substr(0, machine.driver.find('.')));
  if (!driver || *driver >= kDriverOfOrder) return;
  say(findings, Severity::note,
      shown(settings, "NCCL_LAUNCH_ORDER_IMPLICIT") + " with driver " + machine.driver,
      "Captured collectives of several communicators run one after the other, without overlap.",
      "A driver for CUDA 12.9 or later (575) lets them overlap.");
}

void graph_mixing(const Machine&, const Settings& settings, Findings& findings) {
  if (settings.number("NCCL_GRAPH_MIXING_SUPPORT") != 0) return;
  say(findings, Severity::warning, "NCCL_GRAPH_MIXING_SUPPORT=0: graphs must not overlap",
      "Two graphs of one communicator at once, or an eager call beside a graph, hang or corrupt "
      "data. It saves a few nodes of each graph.",
      "Leave it out, unless graphs are launched one after another, with no eager call between.");
}

void comm_blocking(const Machine&, const Settings& settings, Findings& findings) {
  if (settings.number("NCCL_COMM_BLOCKING").value_or(1) != 0) return;
  say(findings, Severity::error,
      shown(settings, "NCCL_COMM_BLOCKING") + ": NCCL's calls return before they are done",
      "It wins over what a program asks for. Weir refuses to work with it: a capture would end "
      "without what NCCL launches later.",
      "Leave it out.");
}

void launch_blocking(const Machine&, const Settings& settings, Findings& findings) {
  if (settings.number("CUDA_LAUNCH_BLOCKING").value_or(0) == 0) return;
  say(findings, Severity::warning,
      shown(settings, "CUDA_LAUNCH_BLOCKING") + ": the host waits for each kernel",
      "A collective waits for its peers: where one thread drives several GPUs or communicators, "
      "that is a deadlock (nccl#750). Nothing overlaps either.",
      "Leave it out; to find a fault use compute-sanitizer.");
}

void device_connections(const Machine&, const Settings& settings, Findings& findings) {
  const std::string* value = settings.find("CUDA_DEVICE_MAX_CONNECTIONS");
  if (value == nullptr) return;
  const std::optional<std::int64_t> count = number_in(*value);
  if (!count || *count < 1 || *count > 32) {
    say(findings, Severity::warning,
        shown(settings, "CUDA_DEVICE_MAX_CONNECTIONS") + ": not a number from 1 to 32",
        "CUDA takes another number then, and does not say which.", "Correct it, or leave it out.");
  } else if (*count == 1) {
    say(findings, Severity::note,
        "CUDA_DEVICE_MAX_CONNECTIONS=1: streams share one queue to the GPU",
        "Kernels start in the order of their launches: a collective that is launched late starts "
        "late, even on a stream that is idle.",
        "Wanted where the order of launches is the plan, as in tensor parallelism; else leave it "
        "out.");
  }
}

void channels(const Machine&, const Settings& settings, Findings& findings) {
  constexpr std::string_view kPairs[][2] = {
      {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"},
      {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS"},
      {"NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"},
  };
  for (const auto& [least, most] : kPairs) {
    const std::optional<std::int64_t> low = settings.number(least), high = settings.number(most);
    if (!low || !high || *low <= *high) continue;
    say(findings, Severity::warning,
        shown(settings, least) + " is more than " + shown(settings, most),
        "Both can't hold; which one NCCL keeps differs from version to version.",
        "Make the first the smaller one.");
  }
}

}  // namespace weir::check
