// SPDX-License-Identifier: Apache-2.0
#include "bench/sharded/trainer.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "bench/sharded/rates.h"

namespace weir::sharded {
namespace {

constexpr double kGpus = 2;
constexpr double kLeastNs = 3'000;
constexpr double kNcclNs = 15'000;  // beside the transfer

double elements(const std::vector<double>& group) {
  return std::accumulate(group.begin(), group.end(), 0.0);
}
Nanoseconds rounded(double ns) { return {static_cast<std::int64_t>(ns)}; }

void need(const char* what, const Status& status) {
  if (!status) throw std::runtime_error(std::string(what) + ": " + status.error().message());
}

}  // namespace

Tensor::Tensor(DeviceHeap& heap, Stream stream, double bytes)
    : heap_(&heap), bytes_{static_cast<std::uint64_t>(bytes)} {
  const Result<void*> block = heap.allocate(bytes_, stream);
  if (!block) throw std::runtime_error("allocate: " + block.error().message());
  block_ = *block;
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  free();
  heap_ = other.heap_;
  block_ = std::exchange(other.block_, nullptr);
  bytes_ = other.bytes_;
  return *this;
}

void Tensor::free() {
  // An error would show as a block that is left.
  if (void* const block = std::exchange(block_, nullptr)) (void)heap_->deallocate(block);
}

Trainer::Trainer(SimDevice& device, HeapOf heap_of, const Streams& streams, const Model& model)
    : device_(device), heap_of_(std::move(heap_of)), streams_(streams), model_(model) {
  const double square = model.width * model.width, wide = model.width * model.hidden;
  for (int i = 0; i < model.layers; ++i) {
    groups_.push_back({square, square, square, square, wide, wide, wide, model.width, model.width});
  }
  const double vocabulary = model.vocabulary * model.width;
  groups_.push_back({vocabulary, vocabulary, model.width});
  unsharded_.resize(groups_.size());
  shards_.resize(groups_.size());
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    for (const double count : groups_[i]) {
      for (Tensors* const of : {&shards_[i], &states_, &states_}) {
        of->push_back(allocate(streams_.compute, count * kFloat / kGpus));
      }
    }
  }
  kernel(streams_.compute, 0, all_of(states_), {});
  for (const Tensors& shards : shards_) kernel(streams_.compute, 0, all_of(shards), {});
  device_.finish();
}

Trainer::~Trainer() {
  device_.finish();
  for (EventHandle* const event : {&gathered_.done, &last_.done, &reduced_at_}) drop(*event);
}

// The launch of a kernel, and the host's time for it.
void Trainer::kernel(Stream stream, double ns, const Pointers& writes, const Pointers& reads) {
  std::vector<Access> accesses;
  for (const Tensor* const tensor : writes) {
    accesses.push_back(Writes(tensor->get(), tensor->bytes()));
  }
  for (const Tensor* const tensor : reads) {
    accesses.push_back(Reads(tensor->get(), tensor->bytes()));
  }
  need("launch", device_.launch(stream, accesses, rounded(std::max(ns, kLeastNs))));
  device_.advance(model_.launch);
}

Trainer::Pointers Trainer::all_of(const Tensors& tensors) {
  Pointers all;
  for (const Tensor& tensor : tensors) all.push_back(&tensor);
  return all;
}

// A tensor of so many bytes that a kernel has written, which may have read the parameters too.
Tensor Trainer::compute(double bytes, double ns, const Pointers& reads) {
  Tensor made = allocate(streams_.compute, bytes);
  Pointers all = all_of(unsharded_[running_]);
  all.insert(all.end(), reads.begin(), reads.end());
  kernel(streams_.compute, ns, {&made}, all);
  return made;
}

EventHandle Trainer::record(Stream stream) {
  const Result<EventHandle> event = device_.create_event();
  if (!event) throw std::runtime_error("create_event: " + event.error().message());
  need("record", device_.record(*event, stream));
  return *event;
}

void Trainer::wait(Stream stream, EventHandle event) { need("wait", device_.wait(stream, event)); }

void Trainer::order(Stream earlier, Stream later) {
  EventHandle event = record(earlier);
  wait(later, event);
  drop(event);
}

void Trainer::drop(EventHandle& event) {
  if (event.value != 0) (void)device_.destroy_event(event);
  event = {};
}

void Trainer::unshard(std::size_t group) {
  if (gathering_ == group || !unsharded_[group].empty()) return;
  if (gathering_) throw std::logic_error("one group is gathered at a time");
  device_.advance(rounded(static_cast<double>(model_.hooks.count) / 2));
  const double bytes = elements(groups_[group]) * kBf16;
  Tensor input = allocate(streams_.copy_in, bytes / kGpus);
  kernel(streams_.copy_in, moving(bytes * 1.5), {&input}, all_of(shards_[group]));
  Tensor output = allocate(streams_.copy_in, bytes);
  kernel(streams_.copy_in, moving(bytes), {&output}, {&input});
  input.free();
  order(streams_.copy_in, streams_.gather);
  kernel(streams_.gather, bytes / kGpus / model_.link + kNcclNs, {&output}, {});
  gathered_ = {std::move(output), record(streams_.gather)};
  gathering_ = group;
}

void Trainer::wait_for_unshard(std::size_t group, bool forward) {
  if (gathering_ != group) return;
  if (forward) free_last_gathered();
  wait(streams_.compute, gathered_.done);
  copy_out(group);
  drop(gathered_.done);
  gathered_.done = record(streams_.compute);
  last_ = std::move(gathered_);
  gathered_ = {};
  gathering_.reset();
  // Forward: so that the next may be gathered while this is copied out.
  if (!forward) free_last_gathered();
}

void Trainer::copy_out(std::size_t group) {
  for (const double count : groups_[group]) {
    unsharded_[group].push_back(allocate(streams_.compute, count * kBf16));
  }
  kernel(streams_.compute, moving(elements(groups_[group]) * kBf16 * 2), all_of(unsharded_[group]),
         {&gathered_.output});
  device_.advance(rounded(static_cast<double>(model_.hooks.count) / 2));
}

void Trainer::free_last_gathered() {
  if (last_.done.value == 0) return;
  wait(streams_.copy_in, last_.done);
  wait(streams_.gather, last_.done);
  last_.output.free();
  drop(last_.done);
}

void Trainer::reduce(std::size_t group, Tensors gradients) {
  reshard(group);
  device_.advance(model_.hooks);
  if (reduced_at_.value != 0) {
    wait(streams_.compute, reduced_at_);
    drop(reduced_at_);
  }
  reduced_.free();
  const double count = elements(groups_[group]);
  reduced_ = compute(count * kFloat, moving(count * (kBf16 + kFloat)), all_of(gradients));
  gradients.clear();
  order(streams_.compute, streams_.reduce);
  Tensor output = allocate(streams_.reduce, count * kFloat / kGpus);
  kernel(streams_.reduce, count * kFloat / kGpus / model_.link + kNcclNs, {&output}, {&reduced_});
  reduced_at_ = record(streams_.reduce);
  sharded_gradients_.push_back(std::move(output));
}

// AdamW over all parameters at once: it needs as much as they take.
void Trainer::update() {
  wait(streams_.compute, reduced_at_);
  drop(reduced_at_);
  order(streams_.reduce, streams_.compute);
  reduced_.free();
  std::vector<Tensors> roots(shards_.size());
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const Tensor& shard : shards_[i]) {
      roots[i].push_back(allocate(streams_.compute, static_cast<double>(shard.bytes().count)));
    }
  }
  device_.advance(model_.optimizer);
  // The gradients came in the other order; the root's is the last in both.
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const double bytes = elements(groups_[i]) * kFloat / kGpus * 12;
    const std::size_t gradient = i == root() ? i : root() - 1 - i;
    kernel(streams_.compute, moving(bytes), all_of(roots[i]), {&sharded_gradients_[gradient]});
    kernel(streams_.compute, 0, all_of(shards_[i]), all_of(roots[i]));
  }
  sharded_gradients_.clear();
}

Nanoseconds Trainer::step(double length) {
  const Nanoseconds begin = device_.now();
  const double count = length * model_.batch;
  tokens_ = {count, length, count * model_.width * kBf16, count * model_.hidden * kBf16};
  const auto layers = static_cast<std::size_t>(model_.layers);
  std::vector<Tensors> saved(layers);
  unshard(root());
  wait_for_unshard(root(), true);
  running_ = root();
  Tensor x = compute(tokens_.row, moving(2 * tokens_.row), {});
  for (std::size_t i = 0; i < layers; ++i) {
    unshard(i);
    wait_for_unshard(i, true);
    running_ = i;
    x = layer(std::move(x), saved[i]);
    device_.advance(rounded(static_cast<double>(model_.hooks.count) / 2));
    reshard(i);
  }
  running_ = root();
  Tensor lost = loss(x);
  free_last_gathered();
  unshard(layers - 1);
  Tensors of_root;
  Tensor gradient = loss_backward(std::move(lost), x, of_root);
  x.free();
  for (std::size_t i = layers; i-- > 0;) {
    unshard(i);
    wait_for_unshard(i, false);
    running_ = i;
    if (i > 0) unshard(i - 1);
    Tensors gradients;
    gradient = layer_backward(std::move(gradient), saved[i], gradients);
    reduce(i, std::move(gradients));
  }
  running_ = root();
  weight_gradient(of_root, model_.vocabulary, model_.width, gradient);
  gradient.free();
  reduce(root(), std::move(of_root));
  update();
  device_.finish();
  return {device_.now().count - begin.count};
}

}  // namespace weir::sharded
