// SPDX-License-Identifier: Apache-2.0
#include "core/device_heap/stream_names.h"

#include <array>

namespace weir {
namespace {

// The names that a thread looked up last. The driver never gives an id again, and which name it has
// never changes, so nothing here can be out of date.
struct Known {
  std::uint64_t number = 0;  // of the device heap
  std::uint64_t id = 0;      // the driver's
  std::uint64_t name = 0;    // Stream::id
};
constinit thread_local std::array<Known, 8> the_known;

}  // namespace

Stream StreamNames::of(Stream found) {
  Known& known = the_known[found.id % the_known.size()];
  if (known.number != number_ || known.id != found.id) {
    known = {number_, found.id, look_up(found).id};
  }
  found.id = known.name;
  return found;
}

Stream StreamNames::look_up(Stream found) {
  const MutexLock lock(mutex_);
  const auto [known, is_new] = by_handle_.try_emplace(found.handle, Named{found, found.id});
  Named& named = known->second;
  if (!named.id) named.id = found.id;
  if (*named.id != found.id) named = {found, found.id};
  return named.name;
}

std::optional<Stream> StreamNames::find(void* handle) const {
  const MutexLock lock(mutex_);
  const auto known = by_handle_.find(handle);
  if (known == by_handle_.end()) return std::nullopt;
  return known->second.name;
}

Stream StreamNames::of_captured(void* handle) {
  const MutexLock lock(mutex_);
  const auto [known, is_new] = by_handle_.try_emplace(handle);
  if (is_new) known->second.name = Stream::of_captured(handle, ++last_own_);
  return known->second.name;
}

std::optional<Stream> StreamNames::own_number(Stream stream) const {
  const MutexLock lock(mutex_);
  const auto known = by_handle_.find(stream.handle);
  if (known == by_handle_.end()) return std::nullopt;
  const Named& named = known->second;
  const bool is_it = !named.id || *named.id == stream.id;
  if (!is_it || !named.name.is_of_captured() || named.name == stream) return std::nullopt;
  return named.name;
}

void StreamNames::forget(Stream stream) {
  const MutexLock lock(mutex_);
  const auto known = by_handle_.find(stream.handle);
  if (known == by_handle_.end()) return;
  const Named& named = known->second;
  if (!named.id || *named.id == stream.id || named.name == stream) by_handle_.erase(known);
}

}  // namespace weir
