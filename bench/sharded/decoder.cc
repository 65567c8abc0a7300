// SPDX-License-Identifier: Apache-2.0
// The decoder's layers and its head: what they allocate, keep for the backward pass, and free.
#include "bench/sharded/rates.h"
#include "bench/sharded/trainer.h"

namespace weir::sharded {

// A matrix of so many rows and columns, times every token's vector.
double Trainer::product(double rows, double columns) const {
  return 2 * tokens_.count * rows * columns / kFlopsPerNs;
}

void Trainer::weight_gradient(Tensors& gradients, double rows, double columns, const Tensor& from) {
  gradients.push_back(compute(rows * columns * kBf16, product(rows, columns), {&from}));
}

Tensor Trainer::norm(const Tensor& x, Tensors& saved) {
  const double row = tokens_.row;
  Tensor wide = compute(2 * row, moving(3 * row), {&x});
  Tensor mean;
  {
    const Tensor squares = compute(2 * row, moving(4 * row), {&wide});
    mean = compute(tokens_.count * kFloat, moving(2 * row), {&squares});
  }
  const Tensor scaled = compute(2 * row, moving(4 * row), {&wide, &mean});
  Tensor narrow = compute(row, moving(3 * row), {&scaled});
  Tensor result = compute(row, moving(2 * row), {&narrow});
  for (Tensor* const tensor : {&mean, &wide, &narrow}) saved.push_back(std::move(*tensor));
  return result;
}

// `beside`: the gradient that goes past the layer.
Tensor Trainer::norm_backward(const Tensor& gradient, Tensors& gradients, const Tensor& beside) {
  const double row = tokens_.row;
  Tensor wide = compute(2 * row, moving(3 * row), {&gradient});
  Tensor squares = compute(2 * row, moving(4 * row), {&wide});
  const Tensor both = compute(2 * row, moving(6 * row), {&wide, &squares});
  wide.free();
  squares.free();
  gradients.push_back(compute(model_.width * kBf16, moving(2 * row), {&gradient}));
  return compute(row, moving(4 * row), {&both, &beside});
}

// The rotary embedding; backward it takes as much.
Tensor Trainer::rotate(const Tensor& x) {
  const double row = tokens_.row;
  const Tensor cosines = compute(row, moving(2 * row), {&x});
  Tensor halves = compute(row, moving(2 * row), {&x});
  const Tensor sines = compute(row, moving(2 * row), {&halves});
  halves.free();
  return compute(row, moving(3 * row), {&cosines, &sines});
}

Tensor Trainer::attention(const Tensor& x, Tensors& saved) {
  const double row = tokens_.row, projection = product(model_.width, model_.width);
  Tensor in = norm(x, saved);
  Tensor query = compute(row, projection, {&in});
  Tensor key = compute(row, projection, {&in});
  Tensor value = compute(row, projection, {&in});
  Tensor rotated_query = rotate(query), rotated_key = rotate(key);
  query.free();
  key.free();
  Tensor attended =
      compute(row, product(model_.width, tokens_.length), {&rotated_query, &rotated_key, &value});
  Tensor sums = allocate(streams_.compute, tokens_.count * 64);
  const Tensor out = compute(row, projection, {&attended});
  Tensor result = compute(row, moving(3 * row), {&out, &x});
  for (Tensor* const tensor : {&in, &rotated_query, &rotated_key, &value, &attended, &sums}) {
    saved.push_back(std::move(*tensor));
  }
  return result;
}

Tensor Trainer::feed(const Tensor& x, Tensors& saved) {
  const double row = tokens_.row, hidden = tokens_.hidden;
  const double projection = product(model_.width, model_.hidden);
  Tensor in = norm(x, saved);
  Tensor gate = compute(hidden, projection, {&in});
  Tensor activated = compute(hidden, moving(2 * hidden), {&gate});
  Tensor up = compute(hidden, projection, {&in});
  Tensor both = compute(hidden, moving(3 * hidden), {&activated, &up});
  const Tensor down = compute(row, projection, {&both});
  Tensor result = compute(row, moving(3 * row), {&down, &x});
  for (Tensor* const tensor : {&in, &gate, &activated, &up, &both}) {
    saved.push_back(std::move(*tensor));
  }
  return result;
}

Tensor Trainer::layer(Tensor x, Tensors& saved) {
  Tensor between = attention(x, saved);
  x.free();
  return feed(between, saved);
}

// Logits, in float for the loss, of which their logarithms stay.
Tensor Trainer::loss(const Tensor& x) {
  const double logits = tokens_.count * model_.vocabulary;
  Tensor narrow = compute(logits * kBf16, product(model_.width, model_.vocabulary), {&x});
  Tensor wide = compute(logits * kFloat, moving(logits * 6), {&narrow});
  narrow.free();
  return compute(logits * kFloat, moving(logits * 8), {&wide});
}

Tensor Trainer::loss_backward(Tensor loss, const Tensor& x, Tensors& gradients) {
  const double logits = tokens_.count * model_.vocabulary;
  Tensor wide = compute(logits * kFloat, moving(logits * 8), {&loss});
  loss.free();
  const Tensor narrow = compute(logits * kBf16, moving(logits * 6), {&wide});
  wide.free();
  Tensor gradient = compute(tokens_.row, product(model_.width, model_.vocabulary), {&narrow});
  weight_gradient(gradients, model_.vocabulary, model_.width, narrow);
  kernel(streams_.compute, 0, {&gradients.back()}, {&narrow, &x});
  return gradient;
}

Tensor Trainer::feed_backward(const Tensor& gradient, Tensors& saved, Tensors& gradients) {
  const double row = tokens_.row, hidden = tokens_.hidden;
  const double projection = product(model_.width, model_.hidden);
  Tensor both = compute(hidden, projection, {&gradient, &saved.back()});
  weight_gradient(gradients, model_.hidden, model_.width, gradient);
  saved.pop_back();
  Tensor up = compute(hidden, moving(3 * hidden), {&both});
  Tensor activated = compute(hidden, moving(3 * hidden), {&both, &saved.back()});
  both.free();
  saved.pop_back();
  Tensor of_up = compute(row, projection, {&up});
  weight_gradient(gradients, model_.hidden, model_.width, up);
  up.free();
  saved.pop_back();
  Tensor gate = compute(hidden, moving(3 * hidden), {&activated, &saved.back()});
  activated.free();
  saved.pop_back();
  Tensor of_gate = compute(row, projection, {&gate});
  weight_gradient(gradients, model_.hidden, model_.width, gate);
  gate.free();
  saved.pop_back();
  Tensor in = compute(row, moving(3 * row), {&of_up, &of_gate});
  of_up.free();
  of_gate.free();
  Tensor result = norm_backward(in, gradients, gradient);
  saved.resize(saved.size() - 3);  // the norm's
  return result;
}

Tensor Trainer::attention_backward(const Tensor& gradient, Tensors& saved, Tensors& gradients) {
  const double row = tokens_.row, projection = product(model_.width, model_.width);
  Tensor attended = compute(row, projection, {&gradient});
  weight_gradient(gradients, model_.width, model_.width, gradient);
  Tensor query = allocate(streams_.compute, row), key = allocate(streams_.compute, row);
  Tensor value = allocate(streams_.compute, row);
  kernel(streams_.compute, 2.5 * product(model_.width, tokens_.length), {&query, &key, &value},
         {&attended, &saved.back()});
  attended.free();
  saved.resize(saved.size() - 5);
  query = rotate(query);
  key = rotate(key);
  Tensor in = allocate(streams_.compute, row);
  for (Tensor* const of : {&query, &key, &value}) {
    const Tensor part = compute(row, projection, {of});
    weight_gradient(gradients, model_.width, model_.width, *of);
    of->free();
    kernel(streams_.compute, moving(3 * row), {&in}, {&part});
  }
  saved.pop_back();
  return norm_backward(in, gradients, gradient);
}

Tensor Trainer::layer_backward(Tensor gradient, Tensors& saved, Tensors& gradients) {
  Tensor between = feed_backward(gradient, saved, gradients);
  gradient.free();
  Tensor result = attention_backward(between, saved, gradients);
  saved.clear();
  return result;
}

}  // namespace weir::sharded
