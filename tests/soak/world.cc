// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/world.h"

#include <cstdio>
#include <utility>

namespace weir::soak {

void Complaints::add(const std::string& who, const std::string& what) {
  const std::scoped_lock lock(mutex_);
  ++count_;
  if (kept_.size() >= kKept) return;
  kept_.push_back(who + ": " + what);
  // At once: what follows may hang.
  std::fprintf(stderr, "soak: %s\n", kept_.back().c_str());
}

bool Complaints::any() const {
  const std::scoped_lock lock(mutex_);
  return count_ > 0;
}

std::vector<std::string> Complaints::all() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> all = kept_;
  if (count_ > kept_.size()) all.push_back(std::to_string(count_ - kept_.size()) + " more");
  return all;
}

void Gate::enter() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !closed_; });
  ++inside_;
}

void Gate::leave() {
  const std::scoped_lock lock(mutex_);
  if (--inside_ == 0 && closed_) changed_.notify_all();
}

void Gate::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  changed_.wait(lock, [this] { return inside_ == 0; });
}

void Gate::open() {
  const std::scoped_lock lock(mutex_);
  closed_ = false;
  changed_.notify_all();
}

bool LiveRanges::insert(const Block& block) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t first = Address::of(block.pointer).value, end = first + block.bytes.count;
  const auto after = ranges_.upper_bound(first);
  if (after != ranges_.end() && after->first < end) return false;
  if (after != ranges_.begin() && std::prev(after)->second > first) return false;
  ranges_[first] = end;
  return true;
}

void LiveRanges::erase(const Block& block) {
  const std::scoped_lock lock(mutex_);
  ranges_.erase(Address::of(block.pointer).value);
}

bool Exchange::put(const Block& block) {
  const std::scoped_lock lock(mutex_);
  if (blocks_.size() >= kMost) return false;
  blocks_.push_back(block);
  return true;
}

std::optional<Block> Exchange::take() {
  const std::scoped_lock lock(mutex_);
  if (blocks_.empty()) return std::nullopt;
  Block block = std::move(blocks_.back());
  blocks_.pop_back();
  return block;
}

bool World::may_change_stream() {
  if (!streams_per_minute) return true;
  const std::chrono::duration<double, std::ratio<60>> minutes =
      std::chrono::steady_clock::now() - opened_;
  if (static_cast<double>(changed_.load()) >= minutes.count() * *streams_per_minute) return false;
  ++changed_;
  return true;
}

Machine::Machine(std::unique_ptr<test::Gpu> gpu)
    : gpu_(std::move(gpu)),
      sim_(dynamic_cast<SimDevice*>(&gpu_->device())),
      ledger_(gpu_->device()) {}

Status Machine::write(Stream stream, Block& block, std::uint64_t pattern, Nanoseconds delay) const {
  Status written = gpu_->write(stream, {block.pointer, block.bytes, pattern}, delay);
  if (!written) return written;
  block.pattern = pattern;
  block.holds = Holds::pattern;
  if (sim_ == nullptr) return {};
  const std::vector<SimContent> now = sim_->contents(Address::of(block.pointer), block.bytes);
  block.write = now.empty() ? 0 : now.front().write;
  return {};
}

Status Machine::check(Stream stream, const Block& block, Nanoseconds delay, const std::string& who,
                      Complaints& complaints) const {
  const std::string wrong = wrong_bytes(block);
  if (!wrong.empty()) complaints.add(who, wrong);
  // On a GPU only a pattern can be compared with; the simulated device looks for races alone here.
  if (block.holds != Holds::pattern && sim_ == nullptr) return {};
  return gpu_->check(stream, {block.pointer, block.bytes, block.pattern}, delay);
}

std::string Machine::wrong_bytes(const Block& block) const {
  if (sim_ == nullptr || block.holds == Holds::anything) return {};
  const std::uint64_t write = block.holds == Holds::zeros ? SimContent::kZeros : block.write;
  Bytes found;
  for (const SimContent& part : sim_->contents(Address::of(block.pointer), block.bytes)) {
    // Zeros have no place in a write.
    const bool right = part.write == write && part.offset == found &&
                       (block.holds == Holds::zeros || part.first == part.offset.count);
    if (!right) break;
    found += part.bytes;
  }
  if (found == block.bytes) return {};
  return "a block of " + std::to_string(block.bytes.count) + " bytes, tag '" + block.tag +
         "', is not what was written from byte " + std::to_string(found.count) + " on";
}

void Machine::pass_time(Nanoseconds time) const {
  if (sim_ != nullptr) sim_->advance(time);
}

Status Machine::finish() const {
  if (sim_ == nullptr) return gpu_->device().synchronize_context();
  sim_->finish();
  return {};
}

}  // namespace weir::soak
