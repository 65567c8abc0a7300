// SPDX-License-Identifier: Apache-2.0
// A quantity over time that changes in steps, with the most of any range at once.

class Series {
  // `time` rises; `value[i]` holds from `time[i]` on. Before the first: 0.
  constructor(time, value) {
    this.time = time;
    this.levels = [value];
    for (let below = value; below.length > kFanOut; below = this.levels[this.levels.length - 1]) {
      const level = new Float64Array(Math.ceil(below.length / kFanOut));
      for (let at = 0, i = 0; at < level.length; ++at) {
        let most = below[i];
        for (const end = Math.min(below.length, (at + 1) * kFanOut); i < end; ++i) {
          if (below[i] > most) most = below[i];
        }
        level[at] = most;
      }
      this.levels.push(level);
    }
    this.peak = this.levels[this.levels.length - 1].reduce((a, b) => Math.max(a, b), 0);
  }

  at(time) {
    return this.#after(countUpTo(this.time, time));
  }
  #after(count) {
    return count === 0 ? 0 : this.levels[0][count - 1];
  }

  // From one time to another, both included.
  most(from, to) {
    let low = countUpTo(this.time, from);
    let high = countUpTo(this.time, to);
    let most = this.#after(low);
    for (let k = 0; low < high; ++k) {
      const level = this.levels[k];
      const last = k + 1 === this.levels.length;
      while (low < high && (last || low % kFanOut !== 0)) most = Math.max(most, level[low++]);
      while (low < high && high % kFanOut !== 0) most = Math.max(most, level[--high]);
      low /= kFanOut;
      high /= kFanOut;
    }
    return most;
  }
}

// What is reserved and not live, at every change of either. Of several changes at one time the last
// one counts: a page is there an instant before the block that it was made for.
function notLive(recording) {
  const {stepTime, live: liveAfter, reservedTime, reservedBytes} = recording;
  const time = new Float64Array(stepTime.length + reservedTime.length);
  const value = new Float64Array(time.length);
  let count = 0;
  let live = 0;
  let held = 0;
  for (let i = 0, j = 0; i < stepTime.length || j < reservedTime.length;) {
    const step = i < stepTime.length ? stepTime[i] : Infinity;
    const change = j < reservedTime.length ? reservedTime[j] : Infinity;
    const now = Math.min(step, change);
    if (change === now) {
      for (; j < reservedTime.length && reservedTime[j] === now; ++j) held = reservedBytes[j];
    }
    if (step === now) {
      for (; i < stepTime.length && stepTime[i] === now; ++i) live = liveAfter[i];
    }
    time[count] = now;
    value[count++] = held > live ? held - live : 0;
  }
  return new Series(time.subarray(0, count), value.subarray(0, count));
}
