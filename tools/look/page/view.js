// SPDX-License-Identifier: Apache-2.0
// Which part of time and memory is shown: one for all charts of the page, so that they move
// together.

const kLeastSpan = 100;     // ns
const kLeastHeight = 2048;  // bytes

class View {
  #listeners = [];

  // Shows [0, duration] ns and [0, usual] bytes at first; more than `most` bytes never.
  constructor(duration, usual, most) {
    this.duration = Math.max(duration, 1);
    this.usual = Math.max(usual, kLeastHeight);
    this.most = Math.max(most, this.usual);
    this.from = this.bottom = 0;
    this.to = this.duration;
    this.top = this.usual;
  }

  onChange(listener) {
    this.#listeners.push(listener);
  }
  #tell(source) {
    this.#listeners.forEach((listener) => listener(source));
  }

  get span() {
    return this.to - this.from;
  }
  get height() {
    return this.top - this.bottom;
  }

  // `source`: who asks, and so knows already.
  setTime(from, to, source = null) {
    const span = Math.min(this.duration, Math.max(Math.min(kLeastSpan, this.duration), to - from));
    this.from = Math.min(Math.max(0, from), this.duration - span);
    this.to = this.from + span;
    this.#tell(source);
  }

  setBytes(bottom, top) {
    const height = Math.min(this.most, Math.max(kLeastHeight, top - bottom));
    this.bottom = Math.min(Math.max(0, bottom), this.most - height);
    this.top = this.bottom + height;
    this.#tell(null);
  }

  // `by`: by what share of what is shown; positive is right, or up.
  pan(by) {
    this.setTime(this.from + by * this.span, this.to + by * this.span);
  }
  rise(by) {
    this.setBytes(this.bottom + by * this.height, this.top + by * this.height);
  }

  // A time in view stays where it is when the view is zoomed about it; else the middle does.
  anchor(time) {
    return time >= this.from && time <= this.to ? time : (this.from + this.to) / 2;
  }

  // Shows `factor` times as much, and keeps `at` where it is.
  zoomTime(factor, at = (this.from + this.to) / 2) {
    this.setTime(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }
  zoomBytes(factor, at = this.bottom) {
    this.setBytes(at - (at - this.bottom) * factor, at + (this.top - at) * factor);
  }

  // All the usual bytes; whoever calls this sets the time next.
  showBytes() {
    this.bottom = 0;
    this.top = this.usual;
  }

  showAll() {
    this.showBytes();
    this.setTime(0, this.duration);
  }

  // Brings a stretch of time into view, without more zoom than there is if it is there already.
  show(from, to) {
    if (from >= this.from && to <= this.to && (from === to || to - from > this.span / 50)) return;
    if (from === to) return this.setTime(from - this.span / 2, from + this.span / 2);
    const around = Math.max(to - from, kLeastSpan) * 0.6;
    this.setTime(from - around, to + around);
  }
}
