// SPDX-License-Identifier: Apache-2.0
#include "replay/captures.h"

#include <algorithm>
#include <utility>

namespace weir {

Status Captures::use(Stream stream) {
  if (!wanted_ && !open_) return {};
  if (!open_) {
    wanted_ = false;
    Result<CaptureScope> scope = CaptureScope::begin(pool_, stream);
    if (!scope.ok()) return std::move(scope).error();
    open_.emplace(*std::move(scope));
    streams_ = {stream};
    return {};
  }
  if (std::find(streams_.begin(), streams_.end(), stream) != streams_.end()) return {};
  streams_.push_back(stream);
  return device_.order(stream, streams_.front());
}

Status Captures::end() {
  wanted_ = false;
  if (!open_) return {};
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    if (Status joined = device_.order(streams_.front(), streams_[i]); !joined.ok()) return joined;
  }
  Result<Graph> graph = open_->end();
  open_.reset();
  if (!graph.ok()) return std::move(graph).error();
  ++made_;
  graphs_.push_back(*std::move(graph));
  device_.run_in_random_orders(graphs_.back().graph(), orders_);
  if (Status launched = graphs_.back().launch(streams_.front()); !launched.ok()) return launched;
  // What the program does next with the graph's outputs comes after the launch.
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    if (Status later = device_.order(streams_[i], streams_.front()); !later.ok()) return later;
  }
  return {};
}

}  // namespace weir
