// SPDX-License-Identifier: Apache-2.0
// Weir behind torch.cuda.memory.CUDAPluggableAllocator: C functions, and none of PyTorch's headers,
// so that one build serves every PyTorch. Their types are those that its setters take, whose
// arguments are passed by value: the pair in two registers, the filter by reference to a copy.
//
// Functions that can't report an error say it in Weir's log; weir_torch_malloc throws (Python sees
// a RuntimeError), and also reports an earlier free that failed. In a child of fork() they do
// nothing, and weir_torch_malloc throws.
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "api/c_status.h"
#include "torch/frees.h"
#include "torch/memory_fraction.h"
#include "torch/pools.h"
#include "torch/process_end.h"
#include "weir/allocator.h"
#include "weir/log.h"

struct CUstream_st;

namespace weir::pytorch {
namespace {

using CudaStream = CUstream_st*;
using c::check;
using c::value_of;

// For as long as the process lives: blocks may be freed while it exits.
class Pluggable {
 public:
  static constexpr std::size_t kMostDevices = 64;

  static Pluggable& get() {
    static Pluggable* const the = new Pluggable(value_of(Config::from_environment()));
    return *the;
  }
  Allocator& allocator() { return handle.allocator; }
  Pools& pools(int device) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Pools>& table = pools_[device];
    if (table == nullptr) {
      table = std::make_unique<Pools>(allocator().heap(device), allocator().device(device));
    }
    return *table;
  }
  Frees& frees(int device) { return frees_.at(static_cast<std::size_t>(device)); }

  const MemoryLimit limit;  // the configured one
  weir_allocator_t handle;

 private:
  explicit Pluggable(const Config& config) : limit(config.limit), handle(trusting(config)) {}
  static Config trusting(Config config) {
    if (!config.trust) config.trust = Trust::context;
    return config;
  }

  std::array<Frees, kMostDevices> frees_;
  std::mutex mutex_;
  std::unordered_map<int, std::unique_ptr<Pools>> pools_;  // guarded by mutex_
};

// Runs `body`, of that function; what goes wrong is logged. Does nothing in a child of fork(),
// where a lock may be held for ever, and once the process exits.
template <class Body>
void logged(const char* call, Body&& body) noexcept {
  if (memory_is_gone()) return;
  try {
    body();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string(call) + ": " + error.what());
  }
}

}  // namespace

Pools& pools_of(int device, const char*) { return Pluggable::get().pools(device); }

extern "C" {

// Of the settings, statistics and recordings: weir.h's functions take it. Null: weir_last_error().
weir_allocator_t* weir_torch_allocator() {
  weir_allocator_t* handle = nullptr;
  (void)c::guarded([&] { handle = &Pluggable::get().handle; });
  return handle;
}

void* weir_torch_malloc(std::size_t bytes, int device, CudaStream stream) {
  if (is_forked_child()) throw std::runtime_error(kUsedAfterFork);
  note_use_of_memory();
  Pluggable& weir = Pluggable::get();
  if (const std::optional<Error> error = weir.frees(device).take_failure()) {
    throw std::runtime_error("weir: " + error->message());
  }
  try {
    // Whether the stream is one of PyTorch's, which last, or may be destroyed at any time, is not
    // said; nor so whether it can be asked later if it is captured.
    if (stream != nullptr) {
      weir.allocator().heap(device).captures().forgo_context_events(ContextEventsLost::pluggable);
    }
    return weir.allocator().allocate({bytes}, stream, device);
  } catch (const OutOfMemory& error) {
    throw std::runtime_error(std::string("CUDA out of memory. Weir: ") + error.what());
  }
}

void weir_torch_free(void* block, std::size_t, int device, CudaStream) {
  logged(__func__, [&] {
    Pluggable& weir = Pluggable::get();
    try {
      weir.allocator().deallocate(block);
    } catch (const Exception& error) {
      if (error.code() != ErrorCode::unknown_pointer) {
        weir.frees(device).note_failed(block, {error.code(), error.what()});
      }
      throw;
    }
  });
}

void weir_torch_init(int) {
  logged(__func__, [] { (void)Pluggable::get(); });
}

void weir_torch_reset() {
  logged(__func__, [] { (void)Pluggable::get().allocator().trim(); });
}

void weir_torch_memory_fraction(double fraction, int device) {
  logged(__func__, [&] {
    Allocator& allocator = Pluggable::get().allocator();
    const MemoryInfo memory = value_of(allocator.device(device).memory_info());
    const Bytes configured = Pluggable::get().limit.on_device_with(memory.total);
    allocator.set_limit(limit_of(fraction, memory.total, configured), device);
  });
}

// The block that `pointer` points into; `pointer` itself, if there is none.
void* weir_torch_base_allocation(void* pointer, std::size_t* bytes) {
  void* base = pointer;
  logged(__func__, [&] {
    Allocator& allocator = Pluggable::get().allocator();
    for (int device = 0; device < allocator.device_count(); ++device) {
      const std::optional<BlockInfo> info = allocator.heap(device).find(pointer);
      if (!info) continue;
      base = info->address.pointer();
      if (bytes != nullptr) *bytes = info->bytes.count;
      return;
    }
  });
  return base;
}

void weir_torch_record_stream(void* block, CudaStream stream) {
  logged(__func__, [&] { Pluggable::get().allocator().record_stream(block, stream); });
}

void weir_torch_begin_allocate_to_pool(int device, PoolId pool,
                                       std::function<bool(CudaStream)> filter) {
  logged(__func__, [&] {
    Pluggable& weir = Pluggable::get();
    // Which stream is the caller's is not said: the default one stands for it, which no capture
    // takes. A filter by thread takes any.
    const Stream current = value_of(weir.allocator().heap(device).stream(nullptr));
    check(weir.pools(device).begin(pool, std::move(filter), current));
  });
}

void weir_torch_end_allocate_to_pool(int device, PoolId pool) {
  logged(__func__, [&] { check(Pluggable::get().pools(device).end(pool)); });
}

void weir_torch_release_pool(int device, PoolId pool) {
  logged(__func__, [&] { check(Pluggable::get().pools(device).release(pool)); });
}

}  // extern "C"

}  // namespace weir::pytorch
