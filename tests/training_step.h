// SPDX-License-Identifier: Apache-2.0
// What a training step asks of memory: a transformer of 16 layers, 2048 wide, on 4 x 1024 tokens in
// bfloat16, its forward pass, and its backward pass, which PyTorch runs in a thread of its own on
// the same stream. Some 9 GiB; the mathematics is left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weir/types.h"

namespace weir::test {

class TrainingStep {
 public:
  using Allocate = std::function<void*(Bytes)>;
  using Free = std::function<void(void*)>;

  // Both are called in the thread that runs the pass.
  TrainingStep(Allocate allocate, Free free)
      : allocate_(std::move(allocate)), free_(std::move(free)) {}

  void forward() {
    keep(kRow);  // the embedding
    for (unsigned layer = 0; layer < kLayers; ++layer) {
      for (int half = 0; half < 2; ++half) {
        norm();
        half == 0 ? attention() : mlp();
        keep(kRow);  // what is passed on
      }
    }
    norm();
    for (const Bytes logits : {kLogits, kLogits * 2}) keep(logits);
    temporary(kLogits * 2);
    keep(kLogits * 2);  // log-softmax
  }

  void backward() {
    void* gradient = take(kLogits * 2);
    replace(gradient, kLogits * 2);
    replace(gradient, kLogits);
    drop_kept(3);
    keep_gradient(Bytes{kVocabulary * kWidth * 2});
    replace(gradient, kRow);
    norm_backward(gradient);
    for (unsigned layer = 0; layer < kLayers; ++layer) {
      for (const int half : {1, 0}) {
        drop_kept(1);
        half == 0 ? attention_backward() : mlp_backward();
        norm_backward(gradient);
      }
    }
    drop_kept(1);
    keep_gradient(Bytes{kVocabulary * kWidth * 2});
    drop(gradient);
  }

  void drop_gradients() {
    for (void* const gradient : std::exchange(gradients_, {})) drop(gradient);
  }

  Bytes peak() const { return peak_; }

 private:
  static constexpr std::uint64_t kLayers = 16, kTokens = 4 * 1024, kWidth = 2048, kHidden = 5632;
  static constexpr std::uint64_t kVocabulary = 32000;
  static constexpr Bytes kRow{kTokens * kWidth * 2}, kInner{kTokens * kHidden * 2};
  static constexpr Bytes kLogits{kTokens * kVocabulary * 2};
  static constexpr Bytes kScalars{kTokens * 4};

  void* take(Bytes bytes) {
    void* const block = allocate_(bytes);
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    sizes_[block] = bytes;
    return block;
  }
  void drop(void* block) {
    live_ -= sizes_.at(block);
    sizes_.erase(block);
    free_(block);
  }
  void temporary(Bytes bytes) { drop(take(bytes)); }
  // For the backward pass.
  void keep(Bytes bytes) { kept_.push_back(take(bytes)); }
  void drop_kept(int count) {
    for (; count > 0; --count) {
      drop(kept_.back());
      kept_.pop_back();
    }
  }
  void keep_gradient(Bytes bytes) { gradients_.push_back(take(bytes)); }
  void replace(void*& block, Bytes bytes) {
    void* const next = take(bytes);
    drop(block);
    block = next;
  }

  void norm() {
    keep(kRow * 2);  // in float
    temporary(kRow * 2);
    keep(kScalars);
    keep(kRow);
    keep(kRow);
  }
  void attention() {
    for (int projection = 0; projection < 3; ++projection) keep(kRow);
    for (int rotated = 0; rotated < 2; ++rotated) {
      void* const half = take(kRow / 2);
      temporary(kRow);
      keep(kRow);
      drop(half);
    }
    keep(kRow);
    keep(kScalars * 16);
  }
  void mlp() {
    for (int part = 0; part < 4; ++part) keep(kInner);
    temporary(kRow);
  }
  void norm_backward(void*& gradient) {
    void* const in_float = take(kRow * 2);
    temporary(kRow * 2);
    drop_kept(4);
    keep_gradient(Bytes{kWidth * 2});
    replace(gradient, kRow);
    drop(in_float);
  }
  void attention_backward() {
    keep_gradient(Bytes{kWidth * kWidth * 2});
    drop_kept(2);
    std::vector<void*> parts;
    for (int part = 0; part < 3; ++part) parts.push_back(take(kRow));
    temporary(kRow / 2);
    drop_kept(5);
    for (void* const part : parts) {
      keep_gradient(Bytes{kWidth * kWidth * 2});
      temporary(kRow);
      drop(part);
    }
  }
  void mlp_backward() {
    void* const product = take(kInner);
    for (int part = 0; part < 4; ++part) {
      void* const inner = take(kInner);
      if (part < 3) keep_gradient(Bytes{kWidth * kHidden * 2});
      drop_kept(1);
      drop(inner);
    }
    temporary(kRow);
    drop(product);
  }

  const Allocate allocate_;
  const Free free_;
  Bytes live_, peak_;
  std::vector<void*> kept_, gradients_;
  std::unordered_map<void*, Bytes> sizes_;
};

}  // namespace weir::test
