// SPDX-License-Identifier: Apache-2.0
// Training of a decoder that is sharded over two GPUs, as one of them sees it, on the simulated
// device: the streams of PyTorch's FSDP2, what it allocates on which of them and when that is
// freed, who waits for whom, and about how long kernels take on an H200.
// Source: torch/distributed/fsdp/_fully_shard of PyTorch 2.11, and transformers' LlamaForCausalLM.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "weir/device_heap.h"
#include "weir/sim_device.h"

namespace weir::sharded {

struct Model {
  int layers = 16;
  double width = 2048, hidden = 5632, vocabulary = 32000;
  double batch = 6;
  double link = 300;                 // GB/s between the GPUs, one way
  Nanoseconds launch{8'000};         // the host, for a kernel
  Nanoseconds hooks{400'000};        // ... for what FSDP2 does before a layer, and after it
  Nanoseconds optimizer{3'000'000};  // ... for AdamW
};

struct Streams {
  Stream compute, copy_in, gather, reduce;
};

// The heap that serves a stream.
using HeapOf = std::function<DeviceHeap&(Stream)>;

class Tensor {
 public:
  Tensor() = default;
  Tensor(DeviceHeap& heap, Stream stream, double bytes);
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor() { free(); }
  void free();
  void* get() const { return block_; }
  Bytes bytes() const { return bytes_; }

 private:
  DeviceHeap* heap_ = nullptr;
  void* block_ = nullptr;
  Bytes bytes_;
};

class Trainer {
 public:
  // All must outlive it. Calls that fail throw std::runtime_error.
  Trainer(SimDevice& device, HeapOf heap_of, const Streams& streams, const Model& model);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Forward, backward and optimizer over sequences of `length` tokens. Returns how long that took,
  // the host having waited for all of it at the end.
  Nanoseconds step(double length);

 private:
  // Parameters that are gathered and reduced together: how many elements each has.
  using Group = std::vector<double>;
  struct Gathered {
    Tensor output;
    EventHandle done;  // the gathering, or, once it was copied out, that
  };
  struct Tokens {
    double count, length;
    double row;     // bytes of a vector of the model's width for each token
    double hidden;  // ... of the hidden width
  };
  using Tensors = std::vector<Tensor>;
  using Pointers = std::vector<const Tensor*>;

  Tensor allocate(Stream stream, double bytes) { return {heap_of_(stream), stream, bytes}; }
  Tensor compute(double bytes, double ns, const Pointers& reads);
  void kernel(Stream stream, double ns, const Pointers& writes, const Pointers& reads);
  static Pointers all_of(const Tensors& tensors);
  EventHandle record(Stream stream);
  void wait(Stream stream, EventHandle event);
  void order(Stream earlier, Stream later);
  void drop(EventHandle& event);

  // What FSDP2 does.
  std::size_t root() const { return groups_.size() - 1; }
  void unshard(std::size_t group);
  void wait_for_unshard(std::size_t group, bool forward);
  void copy_out(std::size_t group);
  void free_last_gathered();
  void reshard(std::size_t group) { unsharded_[group].clear(); }
  void reduce(std::size_t group, Tensors gradients);
  void update();

  // What the model does.
  double product(double rows, double columns) const;
  Tensor norm(const Tensor& x, Tensors& saved);
  Tensor norm_backward(const Tensor& gradient, Tensors& gradients, const Tensor& beside);
  Tensor rotate(const Tensor& x);
  Tensor attention(const Tensor& x, Tensors& saved);
  Tensor feed(const Tensor& x, Tensors& saved);
  Tensor layer(Tensor x, Tensors& saved);
  Tensor loss(const Tensor& x);
  Tensor loss_backward(Tensor loss, const Tensor& x, Tensors& gradients);
  Tensor feed_backward(const Tensor& gradient, Tensors& saved, Tensors& gradients);
  Tensor attention_backward(const Tensor& gradient, Tensors& saved, Tensors& gradients);
  Tensor layer_backward(Tensor gradient, Tensors& saved, Tensors& gradients);
  void weight_gradient(Tensors& gradients, double rows, double columns, const Tensor& from);

  SimDevice& device_;
  const HeapOf heap_of_;
  const Streams streams_;
  const Model model_;
  Tokens tokens_{};
  std::vector<Group> groups_;                // of the layers; the last is the root's
  std::vector<Tensors> shards_, unsharded_;  // by group
  Tensors states_;
  std::size_t running_ = 0;  // the group whose parameters kernels of the compute stream read
  std::optional<std::size_t> gathering_;
  Gathered gathered_;  // that group's
  Gathered last_;      // forward: whose copy-out the next gathering need not wait for
  Tensor reduced_;     // the reduction's input
  EventHandle reduced_at_;
  Tensors sharded_gradients_;
};

}  // namespace weir::sharded
