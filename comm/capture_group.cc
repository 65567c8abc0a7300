#include "comm/capture_group.h"

#include <compare>
#include <map>
#include <utility>

#include "comm/comm_state.h"

namespace weir {
namespace {

// What is known of captures and graphs under way, in the process.
struct Key {
  const DeviceHeap* heap;
  bool is_graph;
  std::uint64_t id;  // the capture's, or the graph's handle
  friend auto operator<=>(const Key&, const Key&) = default;
};

class Registry {
 public:
  static Registry& of_process() {
    static auto* const registry = new Registry;  // communicators may outlive static objects
    return *registry;
  }

  std::shared_ptr<CaptureGroup> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(key);
    return known == known_.end() ? nullptr : known->second.lock();
  }
  std::shared_ptr<CaptureGroup> find_or_make(const Key& key) {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<CaptureGroup>& known = known_[key];
    std::shared_ptr<CaptureGroup> found = known.lock();
    if (found == nullptr) known = found = std::make_shared<CaptureGroup>();
    return found;
  }
  void set(const Key& key, const std::shared_ptr<CaptureGroup>& group) {
    const std::lock_guard lock(mutex_);
    known_[key] = group;
  }
  void forget_what_is_gone() {
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<CaptureGroup>> known_;
};

Key capture_key(const DeviceHeap& heap, std::uint64_t id) {
  return {.heap = &heap, .is_graph = false, .id = id};
}
Key graph_key(const DeviceHeap& heap, GraphHandle graph) {
  return {.heap = &heap, .is_graph = true, .id = graph.value};
}

}  // namespace

std::shared_ptr<CaptureGroup> CaptureGroup::of_capture(const DeviceHeap& heap, std::uint64_t id) {
  return Registry::of_process().find_or_make(capture_key(heap, id));
}
std::shared_ptr<CaptureGroup> CaptureGroup::find_capture(const DeviceHeap& heap, std::uint64_t id) {
  return Registry::of_process().find(capture_key(heap, id));
}
std::shared_ptr<CaptureGroup> CaptureGroup::find_graph(const DeviceHeap& heap, GraphHandle graph) {
  return Registry::of_process().find(graph_key(heap, graph));
}

CaptureGroup::~CaptureGroup() { Registry::of_process().forget_what_is_gone(); }

void CaptureGroup::add(const std::shared_ptr<CommState>& member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(member);
}

std::vector<std::shared_ptr<CommState>> CaptureGroup::members() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<CommState>> all;
  for (const std::weak_ptr<CommState>& each : members_) {
    if (std::shared_ptr<CommState> member = each.lock()) all.push_back(std::move(member));
  }
  return all;
}

void CaptureGroup::becomes(const std::shared_ptr<CaptureGroup>& group, const DeviceHeap& heap,
                           GraphHandle graph) {
  Registry::of_process().set(graph_key(heap, graph), group);
}

CaptureMember::CaptureMember(const std::shared_ptr<CommState>& state,
                             std::shared_ptr<CaptureGroup> all)
    : graphs(state->graphs), group(std::move(all)) {
  // NCCL waits for the graph when the communicator ends.
  ++*graphs;
  group->add(state);
}

CaptureMember::~CaptureMember() { --*graphs; }

}  // namespace weir
