#include "weir/comm/registered_pool.h"

#include <algorithm>
#include <utility>

#include "comm/comm_state.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {

RegisteredPool::RegisteredPool(std::shared_ptr<CommState> communicator)
    : communicator_(std::move(communicator)) {}
RegisteredPool::RegisteredPool(RegisteredPool&&) noexcept = default;

RegisteredPool& RegisteredPool::operator=(RegisteredPool&& other) noexcept {
  if (this != &other) {
    const RegisteredPool old = std::move(*this);
    communicator_ = std::move(other.communicator_);
    memory_ = std::move(other.memory_);
  }
  return *this;
}

RegisteredPool::~RegisteredPool() {
  if (memory_ == nullptr) return;
  const std::shared_ptr<RegisteredMemory> memory = memory_;
  const Status closed = close();
  if (closed) return;
  log(LogLevel::error, closed.error().message());
  if (!memory->abandon()) return;  // the communicator has it
  if (const Status gone = memory->leave(); !gone) log(LogLevel::error, gone.error().message());
  communicator_->remove_memory(memory.get());
}

Result<RegisteredPool> RegisteredPool::create(Communicator& communicator,
                                              const RegisteredPoolOptions& options) {
  if (communicator.state_ == nullptr) return communicator.status().error();
  RegisteredPool pool(communicator.state_);
  CommState& state = *communicator.state_;
  if (options.segment == 0_B) {
    return state.error(ErrorCode::invalid_argument,
                       "a registered pool needs segments of at least one byte");
  }
  if (options.segments < 1) {
    return state.error(
        ErrorCode::invalid_argument,
        "a registered pool needs at least one segment, not " + std::to_string(options.segments));
  }
  if (options.segment > RegisteredMemory::kMost) {
    return state.error(ErrorCode::out_of_memory,
                       "a registered pool: no device has segments of " + format(options.segment));
  }
  pool.memory_ = state.add_memory(round_up(options.segment, state.context.device.granularity()));
  const auto segments = static_cast<std::uint64_t>(options.segments);
  if (Status made = pool.memory_->make(segments); !made) return std::move(made).error();
  return pool;
}

Result<void*> RegisteredPool::allocate(Bytes bytes, Stream stream) {
  if (memory_ == nullptr) return closed().error();
  return memory_->allocate(bytes, stream);
}
Status RegisteredPool::fence(void* block, Stream user) {
  return memory_ == nullptr ? closed() : memory_->fence(block, user);
}
Status RegisteredPool::deallocate(void* block) {
  return memory_ == nullptr ? closed() : memory_->deallocate(block);
}
Status RegisteredPool::verify() { return memory_ == nullptr ? closed() : memory_->verify(); }
RegisteredPoolStatistics RegisteredPool::statistics() const {
  return memory_ == nullptr ? RegisteredPoolStatistics{} : memory_->statistics();
}

Status RegisteredPool::closed() const {
  if (communicator_ == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 "this registered pool was moved away, and can't be used: use the one that it "
                 "became");
  }
  return communicator_->error(ErrorCode::invalid_argument, "the registered pool was closed");
}

Status RegisteredPool::close() {
  if (communicator_ == nullptr) return closed();
  if (memory_ == nullptr) return {};
  if (Status closed = memory_->close(); !closed) return closed;
  communicator_->remove_memory(memory_.get());
  memory_ = nullptr;
  return {};
}

}  // namespace weir
