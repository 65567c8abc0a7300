// SPDX-License-Identifier: Apache-2.0
#include "comm/captures.h"

#include <utility>

namespace weir {

// Sends and receives differ from rank to rank, by their nature, in number too: they do not count.
// Of a rank's operation what it does not use may be anything.
void CapturedOperations::add(const Operation& operation, int ranks) {
  if (operation.kind == OperationKind::send || operation.kind == OperationKind::receive) return;
  ++count;
  for (const char each : operation.describe(ranks) + std::to_string(operation.count)) {
    digest = (digest ^ static_cast<unsigned char>(each)) * 0x100000001b3;
  }
}

Captured* Captures::find(std::uint64_t id) {
  const auto found = captured_.find(id);
  return found == captured_.end() ? nullptr : &found->second;
}

Captured& Captures::add(std::uint64_t id, std::weak_ptr<void> graph) {
  std::erase_if(captured_, [](const auto& each) { return each.second.graph.expired(); });
  return captured_[id] = Captured{.graph = std::move(graph)};
}

Result<Stream> Captures::stream_to_fork() {
  for (const Stream stream : forked_) {
    const Result<CaptureInfo::Status> status = device_.capture_status(stream);
    if (!status) return status.error();
    if (*status == CaptureInfo::Status::none) return stream;
  }
  Result<Stream> made = nccl_.create_stream();
  if (made) forked_.push_back(*made);
  return made;
}

Result<Stream> Captures::eager_stream() {
  if (eager_) return *eager_;
  Result<Stream> made = nccl_.create_stream();
  if (made) eager_ = *made;
  return made;
}

Status Captures::destroy() {
  Status first;
  if (eager_) forked_.push_back(*eager_);
  eager_.reset();
  for (const Stream stream : std::exchange(forked_, {})) {
    Status retired = heap_.retire(stream), destroyed = nccl_.destroy_stream(stream);
    if (first) first = retired ? std::move(destroyed) : std::move(retired);
  }
  captured_.clear();
  return first;
}

}  // namespace weir
