// SPDX-License-Identifier: Apache-2.0
// Captures and graphs of the CUDA device.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/driver_device.h"

namespace weir::cuda {
namespace {

CUgraphNode driver_node(GraphNode node) {
  return static_cast<CUgraphNode>(Address{node.value}.pointer());
}
CUgraph driver_graph(GraphHandle graph) {
  return static_cast<CUgraph>(Address{graph.value}.pointer());
}
CUgraphExec driver_executable(ExecutableHandle executable) {
  return static_cast<CUgraphExec>(Address{executable.value}.pointer());
}

std::vector<GraphNode> graph_nodes(std::span<const CUgraphNode> nodes) {
  std::vector<GraphNode> result(nodes.size());
  std::transform(nodes.begin(), nodes.end(), result.begin(),
                 [](CUgraphNode node) { return GraphNode{Address::of(node).value}; });
  return result;
}

CUstreamCaptureMode driver_mode(CaptureMode mode) {
  switch (mode) {
    case CaptureMode::global:
      return CU_STREAM_CAPTURE_MODE_GLOBAL;
    case CaptureMode::thread_local_:
      return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    case CaptureMode::relaxed:
      return CU_STREAM_CAPTURE_MODE_RELAXED;
  }
  return CU_STREAM_CAPTURE_MODE_GLOBAL;
}

// What the driver calls an illegal state is here always that of a capture: a stream that is being
// captured and should not be, or is not and should be.
Error capture_error(const Driver& driver, std::string_view call, CUresult result) {
  Error error = driver.error(call, result);
  if (result != CUDA_ERROR_ILLEGAL_STATE) return error;
  return {ErrorCode::capture, error.message()};
}

Error not_captured(Stream stream) {
  return {ErrorCode::capture,
          "cuStreamGetCaptureInfo: stream " + std::to_string(stream.id) + " is not being captured"};
}

// What to do about a capture that ended in `result`; empty where the driver's words say it.
std::string_view remedy(CUresult result) {
  switch (result) {
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
      return "a stream that the capture forked to has not joined it again: have the captured "
             "stream "
             "wait for it before the end";
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
      return "an earlier call broke the capture: look for the first call that failed since it "
             "began, "
             "in any thread";
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
      return "another thread began the capture: end it in that thread, or begin it as relaxed";
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
      return "the capture waited for work outside it: have that work finish before the capture "
             "begins, or wait for an external event";
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
      return "the capture began in another stream: end it in that stream";
    case CUDA_ERROR_ILLEGAL_STATE:
      return "the stream is not being captured";
    default:
      return "";
  }
}

}  // namespace

Result<CaptureInfo::Status> DriverDevice::capture_status(Stream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = on(stream, [&] {
    return driver_.cuStreamGetCaptureInfo(driver_stream(stream), &status, nullptr, nullptr, nullptr,
                                          nullptr, nullptr);
  });
  // The legacy default stream, beside a capture of a stream that waits for it: it is not captured.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return CaptureInfo::Status::none;
  if (result != CUDA_SUCCESS) return driver_.error("cuStreamGetCaptureInfo", result);
  switch (status) {
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
      return CaptureInfo::Status::active;
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
      return CaptureInfo::Status::invalidated;
    default:
      return CaptureInfo::Status::none;
  }
}

// To ask for the number of a capture that another thread ends just then crashes in the driver (seen
// with 580.159). So it is asked for where there is a capture; of its own capture a thread knows.
Result<CaptureInfo> DriverDevice::capture_info(Stream stream) {
  const Result<CaptureInfo::Status> status = capture_status(stream);
  if (!status) return status.error();
  if (*status == CaptureInfo::Status::none) return CaptureInfo{};
  CUstreamCaptureStatus again = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUresult result = on(stream, [&] {
    return driver_.cuStreamGetCaptureInfo(driver_stream(stream), &again, &id, nullptr, nullptr,
                                          nullptr, nullptr);
  });
  if (result != CUDA_SUCCESS) return driver_.error("cuStreamGetCaptureInfo", result);
  if (again == CU_STREAM_CAPTURE_STATUS_NONE) return CaptureInfo{};
  return CaptureInfo{.status = *status, .id = id};
}

Result<std::vector<GraphNode>> DriverDevice::capture_tips(Stream stream) {
  const ContextScope scope = current();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUgraphNode* nodes = nullptr;
  // Asked for because an edge with data, such as a programmatic launch's, is an error otherwise.
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  const CUresult result = driver_.cuStreamGetCaptureInfo(driver_stream(stream), &status, nullptr,
                                                         nullptr, &nodes, &edges, &count);
  if (result != CUDA_SUCCESS) return driver_.error("cuStreamGetCaptureInfo", result);
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return not_captured(stream);
  // The driver's list lasts only until the next call on the stream.
  return graph_nodes({nodes, count});
}

Status DriverDevice::add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) {
  const ContextScope scope = current();
  std::vector<CUgraphNode> driver_nodes(nodes.size());
  std::transform(nodes.begin(), nodes.end(), driver_nodes.begin(), driver_node);
  const CUresult result = driver_.cuStreamUpdateCaptureDependencies(
      driver_stream(stream), driver_nodes.data(), nullptr, driver_nodes.size(),
      CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
  if (result == CUDA_SUCCESS) return {};
  return capture_error(driver_, "cuStreamUpdateCaptureDependencies", result);
}

Result<std::vector<GraphNode>> DriverDevice::node_dependencies(GraphNode node) {
  const ContextScope scope = current();
  // The driver fills what room it is given and says how much it used. Asking for the count alone
  // is no way round that: without room for their data, edges that have data are an error.
  std::array<CUgraphNode, 8> few;
  std::array<CUgraphEdgeData, few.size()> few_edges;
  std::size_t count = few.size();
  CUresult result =
      driver_.cuGraphNodeGetDependencies(driver_node(node), few.data(), few_edges.data(), &count);
  if (result == CUDA_SUCCESS && count < few.size()) return graph_nodes({few.data(), count});
  std::vector<CUgraphNode> nodes(few.size());
  std::vector<CUgraphEdgeData> edges;
  for (; result == CUDA_SUCCESS && count == nodes.size();) {
    count = nodes.size() * 2;
    nodes.resize(count);
    edges.resize(count);
    result =
        driver_.cuGraphNodeGetDependencies(driver_node(node), nodes.data(), edges.data(), &count);
  }
  if (result != CUDA_SUCCESS) return driver_.error("cuGraphNodeGetDependencies", result);
  return graph_nodes({nodes.data(), count});
}

Status DriverDevice::retain(Stream stream, std::shared_ptr<void> object) {
  const ContextScope scope = current();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  CUresult result = driver_.cuStreamGetCaptureInfo(driver_stream(stream), &status, nullptr, &graph,
                                                   nullptr, nullptr, nullptr);
  if (result != CUDA_SUCCESS) return driver_.error("cuStreamGetCaptureInfo", result);
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return not_captured(stream);
  using Object = std::shared_ptr<void>;
  auto held = std::make_unique<Object>(std::move(object));
  CUuserObject user_object = nullptr;
  result = driver_.cuUserObjectCreate(
      &user_object, held.get(), [](void* last) { delete static_cast<Object*>(last); }, 1,
      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (result != CUDA_SUCCESS) return driver_.error("cuUserObjectCreate", result);
  (void)held.release();  // the driver's
  result = driver_.cuGraphRetainUserObject(graph, user_object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (result == CUDA_SUCCESS) return {};
  driver_.cuUserObjectRelease(user_object, 1);
  return driver_.error("cuGraphRetainUserObject", result);
}

Status DriverDevice::begin_capture(Stream stream, CaptureMode mode) {
  const CUresult result = on(stream, [&] {
    return driver_.cuStreamBeginCapture(driver_stream(stream), driver_mode(mode));
  });
  if (result == CUDA_SUCCESS) return {};
  return capture_error(driver_, "cuStreamBeginCapture", result);
}

Result<GraphHandle> DriverDevice::end_capture(Stream stream) {
  CUgraph graph = nullptr;
  CUresult result =
      on(stream, [&] { return driver_.cuStreamEndCapture(driver_stream(stream), &graph); });
  if (result == CUDA_SUCCESS && graph != nullptr) return GraphHandle{Address::of(graph).value};
  if (result == CUDA_SUCCESS) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (graph != nullptr) driver_.cuGraphDestroy(graph);
  const Error error = capture_error(driver_, "cuStreamEndCapture", result);
  const std::string_view what_to_do = remedy(result);
  if (what_to_do.empty()) return error;
  return Error(error.code(), error.message() + ": " + std::string(what_to_do));
}

// Making, launching and destroying an executable may take or give back memory of the device's,
// which another capture that is going on must not mind.

// Nodes keep the priority of the stream that they were captured on. Without that, a collective
// beside a kernel that fills the GPU would begin when the kernel's last blocks do.
Result<ExecutableHandle> DriverDevice::instantiate(GraphHandle graph) {
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  CUgraphExec executable = nullptr;
  const CUresult result = driver_.cuGraphInstantiateWithFlags(
      &executable, driver_graph(graph), CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  if (result == CUDA_SUCCESS) return ExecutableHandle{Address::of(executable).value};
  Error error = driver_.error("cuGraphInstantiateWithFlags", result);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return error;
  return Error(ErrorCode::out_of_memory, error.message() + " for a graph's executable");
}

Status DriverDevice::launch_graph(ExecutableHandle executable, Stream stream) {
  const RelaxedCaptureScope relaxed(driver_);
  return driver_.check("cuGraphLaunch", on(stream, [&] {
                         return driver_.cuGraphLaunch(driver_executable(executable),
                                                      driver_stream(stream));
                       }));
}

Status DriverDevice::destroy_executable(ExecutableHandle executable) {
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  return driver_.check("cuGraphExecDestroy",
                       driver_.cuGraphExecDestroy(driver_executable(executable)));
}

Status DriverDevice::destroy_graph(GraphHandle graph) {
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  return driver_.check("cuGraphDestroy", driver_.cuGraphDestroy(driver_graph(graph)));
}

}  // namespace weir::cuda
