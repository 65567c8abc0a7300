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
    if (matches === null) {
      this.step = step;
      this.time = stepTime;
      this.live = this.recording.live;
      this.origin = null;
      return;
    }
    let count = 0;
    for (const s of step) count += matches[s < 0 ? ~s : s];
    this.step = new Int32Array(count);
    this.time = new Float64Array(count);
    this.live = new Float64Array(count);
    this.origin = new Int32Array(count);  // which steps of the recording
    let live = 0;
    let place = 0;
    for (let i = 0; i < step.length; ++i) {
      const s = step[i];
      const block = s < 0 ? ~s : s;
      if (matches[block] === 0) continue;
      live += s < 0 ? -bytes[block] : bytes[block];
      this.origin[place] = i;
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
    const {live} = this;
    this.levels = [];
    let below = null;
    for (let size = this.step.length; size > kFanOut;) {
      const count = Math.ceil(size / kFanOut);
      const level = new Uint32Array(count);
      for (let i = 0; i < count; ++i) {
        let best = below === null ? i * kFanOut : below[i * kFanOut];
        for (let j = i * kFanOut; j < Math.min(size, (i + 1) * kFanOut); ++j) {
          const step = below === null ? j : below[j];
          if (live[step] > live[best]) best = step;
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
    return this.origin === null ? step : countUpTo(this.origin, step) - 1;
  }

  liveAfter(step) {
    return step < 0 ? 0 : this.live[step];
  }

  // The last step that has happened at a time; -1: none has.
  stepAt(time) {
    return countUpTo(this.time, time) - 1;
  }

  // Of the time that a column of pixels stands for, the step after which most is live: column
  // `index` of columns that are `width` ns wide. Answers are kept until the width changes.
  stepOfColumn(index, width) {
    if (this.columnWidth !== width) {
      this.columnWidth = width;
      this.columnSteps = new Map();
    }
    const known = this.columnSteps.get(index);
    if (known !== undefined) return known;
    const first = this.stepAt(index * width);
    const last = this.stepAt((index + 1) * width);
    const step = first === last ? first : this.highest(first, last);
    this.columnSteps.set(index, step);
    return step;
  }

  // Of steps [from, to], the first after which most is live; `from` may be -1, before all.
  highest(from, to) {
    const {live, levels} = this;
    let best = from;
    let most = this.liveAfter(from);
    const consider = (step) => {
      if (live[step] < most || (live[step] === most && step >= best)) return;
      best = step;
      most = live[step];
    };
    let low = Math.max(from, 0);
    let high = to + 1;
    for (let level = 0; low < high; ++level) {
      const steps = level === 0 ? null : levels[level - 1];
      const top = level === levels.length;
      for (; low < high && (top || low % kFanOut !== 0); ++low) consider(steps === null ? low : steps[low]);
      while (low < high && high % kFanOut !== 0) {
        --high;
        consider(steps === null ? high : steps[high]);
      }
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
