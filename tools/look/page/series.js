// SPDX-License-Identifier: Apache-2.0
// A quantity over time that changes in steps, with the most of any range at once.

class Series {
  // `time` rises; `value[i]` holds from `time[i]` on. Before the first: 0.
  constructor(time, value) {
    this.time = time;
    this.levels = [value];
    for (let below = value; below.length > kFanOut; below = this.levels[this.levels.length - 1]) {
      const level = new Float64Array(Math.ceil(below.length / kFanOut));
      for (let i = 0; i < below.length; ++i) {
        const at = Math.floor(i / kFanOut);
        level[at] = i % kFanOut === 0 ? below[i] : Math.max(level[at], below[i]);
      }
      this.levels.push(level);
    }
    this.peak = this.levels[this.levels.length - 1].reduce((a, b) => Math.max(a, b), 0);
  }

  at(time) {
    const after = d3.bisectRight(this.time, time);
    return after === 0 ? 0 : this.levels[0][after - 1];
  }

  // From one time to another, both included.
  most(from, to) {
    let most = this.at(from);
    let low = d3.bisectRight(this.time, from);
    let high = d3.bisectRight(this.time, to);
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
  const {step, stepTime, bytes, reservedTime, reservedBytes} = recording;
  const time = new Float64Array(step.length + reservedTime.length);
  const value = new Float64Array(time.length);
  let count = 0;
  let live = 0;
  let held = 0;
  for (let i = 0, j = 0; i < step.length || j < reservedTime.length;) {
    const now = Math.min(stepTime[i] ?? Infinity, reservedTime[j] ?? Infinity);
    for (; j < reservedTime.length && reservedTime[j] === now; ++j) held = reservedBytes[j];
    for (; i < step.length && stepTime[i] === now; ++i)
      live += step[i] >= 0 ? bytes[step[i]] : -bytes[~step[i]];
    time[count] = now;
    value[count++] = Math.max(0, held - live);
  }
  return new Series(time.subarray(0, count), value.subarray(0, count));
}
