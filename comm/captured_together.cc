#include "comm/captured_together.h"

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

  std::shared_ptr<CapturedTogether> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(key);
    return known == known_.end() ? nullptr : known->second.lock();
  }
  std::shared_ptr<CapturedTogether> find_or_make(const Key& key) {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<CapturedTogether>& known = known_[key];
    std::shared_ptr<CapturedTogether> found = known.lock();
    if (found == nullptr) known = found = std::make_shared<CapturedTogether>();
    return found;
  }
  void set(const Key& key, const std::shared_ptr<CapturedTogether>& together) {
    const std::lock_guard lock(mutex_);
    known_[key] = together;
  }
  void forget_what_is_gone() {
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<CapturedTogether>> known_;
};

Key capture_key(const DeviceHeap& heap, std::uint64_t id) {
  return {.heap = &heap, .is_graph = false, .id = id};
}
Key graph_key(const DeviceHeap& heap, GraphHandle graph) {
  return {.heap = &heap, .is_graph = true, .id = graph.value};
}

}  // namespace

std::shared_ptr<CapturedTogether> CapturedTogether::of_capture(const DeviceHeap& heap,
                                                               std::uint64_t id) {
  return Registry::of_process().find_or_make(capture_key(heap, id));
}
std::shared_ptr<CapturedTogether> CapturedTogether::find_capture(const DeviceHeap& heap,
                                                                 std::uint64_t id) {
  return Registry::of_process().find(capture_key(heap, id));
}
std::shared_ptr<CapturedTogether> CapturedTogether::find_graph(const DeviceHeap& heap,
                                                               GraphHandle graph) {
  return Registry::of_process().find(graph_key(heap, graph));
}

CapturedTogether::~CapturedTogether() { Registry::of_process().forget_what_is_gone(); }

void CapturedTogether::add(const std::shared_ptr<CommState>& member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(member);
}

std::vector<std::shared_ptr<CommState>> CapturedTogether::members() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<CommState>> all;
  for (const std::weak_ptr<CommState>& each : members_) {
    if (std::shared_ptr<CommState> member = each.lock()) all.push_back(std::move(member));
  }
  return all;
}

void CapturedTogether::becomes(const std::shared_ptr<CapturedTogether>& together,
                               const DeviceHeap& heap, GraphHandle graph) {
  Registry::of_process().set(graph_key(heap, graph), together);
}

CapturedPart::CapturedPart(const std::shared_ptr<CommState>& state,
                           std::shared_ptr<CapturedTogether> all)
    : graphs(state->graphs), together(std::move(all)) {
  // NCCL waits for the graph when the communicator ends.
  ++*graphs;
  together->add(state);
}

CapturedPart::~CapturedPart() { --*graphs; }

}  // namespace weir
