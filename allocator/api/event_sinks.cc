// SPDX-License-Identifier: Apache-2.0
#include "api/event_sinks.h"

#include "weir/log.h"

namespace weir {

void StorySink::on_event(const Event& event) {
  const std::scoped_lock lock(mutex_);
  if (latest_.size() == length_) latest_.pop_front();
  latest_.push_back(event);
}

std::string StorySink::tell() const {
  const std::scoped_lock lock(mutex_);
  std::string story;
  for (const Event& event : latest_) story += describe(event) + "\n";
  return story;
}

}  // namespace weir
