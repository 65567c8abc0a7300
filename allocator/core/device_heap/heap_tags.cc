// SPDX-License-Identifier: Apache-2.0
#include "weir/heap_tags.h"

#include <memory>
#include <mutex>
#include <utility>

#include "core/device_heap/device_heap_impl.h"

namespace weir {

Result<SleepReport> HeapTags::sleep(const SleepOptions& options) {
  return heap_->impl_->sleep.sleep(options);
}
Result<SleepReport> HeapTags::wake(const WakeOptions& options) {
  return heap_->impl_->sleep.wake(options);
}
std::vector<TagInfo> HeapTags::list() const { return heap_->impl_->sleep.tags(); }
Status HeapTags::set_contents(const std::string& tag, SleepContents contents) {
  return heap_->impl_->sleep.set_contents(tag, contents);
}
Status HeapTags::declare_changed(const std::string& tag) {
  return heap_->impl_->sleep.declare_changed(tag);
}
Result<GraphPool*> HeapTags::pool(const std::string& tag) {
  if (tag.empty() || tag == kDefaultTag) {
    return Error(ErrorCode::invalid_argument,
                 "the tag '" + tag + "' has no pool of its own: name another tag");
  }
  DeviceHeap::Impl& impl = *heap_->impl_;
  impl.sleep.add_tag(tag);
  const std::lock_guard lock(impl.tag_pools_mutex);
  std::unique_ptr<GraphPool>& pool = impl.tag_pools[tag];
  if (pool == nullptr) pool = std::make_unique<GraphPool>(*heap_, GraphPoolOptions{.tag = tag});
  return pool.get();
}
Result<std::uint64_t> HeapTags::hold(const void* block, std::string holder) {
  return heap_->impl_->sleep.hold(block, std::move(holder));
}
void HeapTags::release_hold(std::uint64_t hold) { heap_->impl_->sleep.release_hold(hold); }
Result<std::vector<HostPart>> HeapTags::host_copy(const void* pointer, Bytes bytes) const {
  return heap_->impl_->sleep.host_copy({Address::of(pointer), bytes});
}
Status HeapTags::read_asleep(const void* pointer, Bytes bytes, void* to) const {
  return heap_->impl_->sleep.read_asleep({Address::of(pointer), bytes}, to);
}
void HeapTags::on_sleep(HeldCallback callback) {
  heap_->impl_->sleep.on_sleep(std::move(callback));
}
Residue HeapTags::residue() const { return heap_->impl_->sleep.residue(); }

}  // namespace weir
