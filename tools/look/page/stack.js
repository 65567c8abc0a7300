// SPDX-License-Identifier: Apache-2.0
// The blocks that are live after a step, from the bottom up: the oldest at the bottom, or the one
// of the lowest address.
//
// A list whose steps can be taken back: a block that is taken out keeps its neighbours' names, and
// going back over the same steps finds them as they were (Knuth's dancing links). So a step either
// way costs the same, however many blocks are live.
class Stack {
  constructor(selection) {
    const count = selection.recording.count;
    this.selection = selection;
    this.ground = count;  // below the first block, and above the last one
    this.next = new Int32Array(count + 1);
    this.previous = new Int32Array(count + 1);
    this.next[count] = this.previous[count] = count;
    this.step = -1;
  }

  // Makes the list what it is after `step`; -1: before all. Goes `most` steps at most; whether that
  // was enough.
  moveTo(step, most = Infinity) {
    const {step: steps} = this.selection;
    const to = this.step < step ? Math.min(step, this.step + most) : Math.max(step, this.step - most);
    while (this.step < to) this.#forward(steps[++this.step]);
    while (this.step > to) this.#back(steps[this.step--]);
    return to === step;
  }

  #forward(step) {
    if (step < 0) return this.#takeOut(~step);
    const {next, previous, ground} = this;
    const {under} = this.selection;
    const below = under === null ? previous[ground] : under[step] < 0 ? ground : under[step];
    previous[step] = below;
    next[step] = next[below];
    next[below] = previous[next[step]] = step;
  }

  #back(step) {
    if (step >= 0) return this.#takeOut(step);
    this.next[this.previous[~step]] = this.previous[this.next[~step]] = ~step;
  }

  #takeOut(block) {
    this.next[this.previous[block]] = this.next[block];
    this.previous[this.next[block]] = this.previous[block];
  }

  // The blocks from the bottom up, as {block, from, to} in bytes, until `visit` returns true.
  visit(visit) {
    const {bytes} = this.selection.recording;
    let from = 0;
    for (let block = this.next[this.ground]; block !== this.ground; block = this.next[block]) {
      const to = from + bytes[block];
      if (visit(block, from, to)) return;
      from = to;
    }
  }

  // The block that covers a height in bytes; -1: none.
  blockAt(height) {
    let found = -1;
    this.visit((block, from, to) => {
      if (height >= from && height < to) found = block;
      return to > height;
    });
    return found;
  }
}
