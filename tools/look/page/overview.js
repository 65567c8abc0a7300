// SPDX-License-Identifier: Apache-2.0
// The whole recording, small, under a chart; the part that the chart shows can be dragged.

const kOverviewHeight = 46;

class Overview {
  constructor(element, view) {
    this.view = view;
    this.element = make('div', {class: 'overview'}, element);
    this.canvas = make('canvas', {'aria-hidden': 'true'}, this.element);
    this.svg = d3.select(this.element).append('svg').attr('aria-hidden', 'true');
    this.group = this.svg.append('g');
    this.brush = d3.brushX().on('brush', (argument) => this.#brushed(d3.event || argument));
  }

  resize(width) {
    this.width = width;
    this.svg.attr('width', width).attr('height', kOverviewHeight);
    this.brush.extent([[0, 0], [width, kOverviewHeight]]);
    this.following = true;
    this.group.call(this.brush);
    this.following = false;
  }

  #brushed(event) {
    if (this.following || !event.selection) return;  // moved by the page, not by a person
    const [from, to] = event.selection.map((x) => x / this.width * this.view.duration);
    this.view.setTime(from, to, this);
  }

  // The memory; seldom changes.
  draw(selection, most) {
    const context = sized(this.canvas, this.width, kOverviewHeight);
    const {recording} = selection;
    const y = (bytes) => kOverviewHeight - bytes / most * (kOverviewHeight - 2);
    const scale = this.view.duration / this.width;
    const lasts = Math.max(recording.duration, 1);
    context.fillStyle = theme.live;
    for (let x = 0; x < this.width && x * scale <= lasts; ++x) {
      const step =
          selection.highest(selection.stepAt(x * scale), selection.stepAt((x + 1) * scale));
      const top = y(selection.liveAfter(step));
      context.fillRect(x, top, 1, kOverviewHeight - top);
    }
    context.strokeStyle = theme.reserved;
    context.beginPath();
    for (let x = 0; x < this.width && x * scale <= lasts; ++x) {
      context.lineTo(x, y(recording.mostReserved(x * scale, (x + 1) * scale)));
    }
    context.stroke();
  }

  // Where the chart's view is.
  update(source) {
    if (source === this) return;
    const {from, to, duration} = this.view;
    const right = Math.max(to / duration * this.width, from / duration * this.width + 3);
    this.following = true;
    this.brush.move(this.group, [from / duration * this.width, right]);
    this.following = false;
  }
}
