// SPDX-License-Identifier: Apache-2.0
// The blocks that are shown, with the sum of their bytes after each step, and the highest sum of
// any range of steps at once: so a picture of the whole recording shows every peak.

const kFanOut = 16;

class Selection {
  // `matches`: by block, 1 or 0; null: all of them.
  constructor(recording, matches, byAddress) {
    this.recording = recording;
    this.matches = matches;
    this.byAddress = byAddress;
    this.#takeSteps();
    this.under = !byAddress ? null : matches === null ? recording.under : this.#neighbours();
    this.#buildPyramid();
  }

  #takeSteps() {
    const {step, stepTime, bytes} = this.recording;
    const matches = this.matches;
    let count = step.length;
    if (matches !== null) {
      count = 0;
      for (const s of step) count += matches[s < 0 ? ~s : s];
    }
    this.step = matches === null ? step : new Int32Array(count);
    this.time = matches === null ? stepTime : new Float64Array(count);
    this.live = new Float64Array(count);
    this.origin = matches === null ? null : new Int32Array(count);  // which steps of the recording
    let live = 0;
    let place = 0;
    for (let i = 0; i < step.length; ++i) {
      const s = step[i];
      const block = s < 0 ? ~s : s;
      if (matches !== null && matches[block] === 0) continue;
      live += s < 0 ? -bytes[block] : bytes[block];
      if (this.origin !== null) this.origin[place] = i;
      this.step[place] = s;
      this.time[place] = stepTime[i];
      this.live[place++] = live;
    }
  }

  // Which of the shown blocks has the next lower address when a block begins.
  #neighbours() {
    const all = new Stack(new Selection(this.recording, null, true));
    const under = new Int32Array(this.recording.count).fill(-1);
    const {step} = this.recording;
    for (let i = 0; i < step.length; ++i) {
      all.moveTo(i);
      if (step[i] < 0 || this.matches[step[i]] === 0) continue;
      let below = all.previous[step[i]];
      while (below !== all.ground && this.matches[below] === 0) below = all.previous[below];
      under[step[i]] = below === all.ground ? -1 : below;
    }
    return under;
  }

  // levels[k][i]: which of steps [i * 16^(k+1), (i + 1) * 16^(k+1)) leaves the most live.
  #buildPyramid() {
    this.levels = [];
    let below = null;
    for (let size = this.step.length; size > kFanOut;) {
      const count = Math.ceil(size / kFanOut);
      const level = new Uint32Array(count);
      for (let i = 0; i < count; ++i) {
        let best = below === null ? i * kFanOut : below[i * kFanOut];
        for (let j = i * kFanOut; j < Math.min(size, (i + 1) * kFanOut); ++j) {
          const step = below === null ? j : below[j];
          if (this.live[step] > this.live[best]) best = step;
        }
        level[i] = best;
      }
      this.levels.push(level);
      below = level;
      size = count;
    }
  }

  // A step of the selection as one of the recording, and back: the last one that has happened then.
  toRecording(step) {
    return this.origin === null || step < 0 ? step : this.origin[step];
  }
  fromRecording(step) {
    return this.origin === null ? step : d3.bisectRight(this.origin, step) - 1;
  }

  liveAfter(step) {
    return step < 0 ? 0 : this.live[step];
  }

  // The last step that has happened at a time; -1: none has.
  stepAt(time) {
    return d3.bisectRight(this.time, time) - 1;
  }

  // Of steps [from, to], the first after which most is live; `from` may be -1, before all.
  highest(from, to) {
    let best = from;
    const consider = (step) => {
      const more = this.liveAfter(step) - this.liveAfter(best);
      if (more > 0 || (more === 0 && step < best)) best = step;
    };
    let low = Math.max(from, 0);
    let high = to + 1;
    const at = (level, i) => level === 0 ? i : this.levels[level - 1][i];
    for (let level = 0; low < high; ++level) {
      const top = level === this.levels.length;
      while (low < high && (top || low % kFanOut !== 0)) consider(at(level, low++));
      while (low < high && high % kFanOut !== 0) consider(at(level, --high));
      low /= kFanOut;
      high /= kFanOut;
    }
    return best;
  }

  // After which step most is live; of a recording of one moment, after all of them.
  peak() {
    if (this.recording.isMoment) return this.step.length - 1;
    return this.step.length === 0 ? -1 : this.highest(-1, this.step.length - 1);
  }
}
