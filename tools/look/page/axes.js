// SPDX-License-Identifier: Apache-2.0
// The scales beside a chart: bytes in powers of two, time since the beginning.

const kMargin = {
  left: 78,
  right: 14,
  top: 30,
  bottom: 28
};

function byteTicks(bottom, top, count) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, (top - bottom) / count)));
  return d3.range(Math.ceil(bottom / step) * step, top, step);
}

// Sizes such that neighbours `step` apart differ.
function byteTickText(bytes, step) {
  const unit = bytes === 0 ? 0 : Math.min(kUnits.length - 1, Math.floor(Math.log2(bytes) / 10));
  const size = 1024 ** unit;
  const digits = step >= size ? 0 : Math.min(6, Math.ceil(Math.log2(size / step)));
  return `${Number((bytes / size).toFixed(digits))} ${kUnits[unit]}`;
}

class Axes {
  constructor(plot) {
    this.svg = d3.select(plot).append('svg').attr('class', 'axes').attr('aria-hidden', 'true');
    this.grid = this.svg.append('g').attr('class', 'grid');
    this.bytes = this.svg.append('g').attr('class', 'axis');
    this.time = this.svg.append('g').attr('class', 'axis');
    this.marks = this.svg.append('g').attr('class', 'marks');
    this.other = this.svg.append('text').attr('class', 'other');
    this.caret = this.svg.append('g').attr('class', 'caret');
    this.caret.append('path').attr('class', 'halo');
    this.caret.append('path').attr('class', 'line');
    this.caret.append('path').attr('class', 'handle');
    this.peak = this.svg.append('g').attr('class', 'peak');
    this.peak.append('path').attr('d', 'M0,-3l-5,-8h10z');
    this.peak.append('text');
  }

  draw(view, recording, width, height) {
    this.svg.attr('width', width + kMargin.left + kMargin.right)
        .attr('height', height + kMargin.top + kMargin.bottom);
    const move = (x, y) => `translate(${x},${y})`;
    const y = d3.scaleLinear([view.bottom, view.top], [height, 0]);
    const ticks = byteTicks(view.bottom, view.top, Math.max(2, height / 48));
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : view.height;
    this.bytes.attr('transform', move(kMargin.left, kMargin.top))
        .call(d3.axisLeft(y)
                  .tickValues(ticks)
                  .tickFormat((d) => byteTickText(d, step))
                  .tickSizeOuter(0));
    this.grid.attr('transform', move(kMargin.left, kMargin.top))
        .call(d3.axisLeft(y).tickValues(ticks).tickFormat('').tickSize(-width).tickSizeOuter(0));
    const x = d3.scaleLinear([view.from, view.to], [0, width]);
    const times = recording.isMoment ? [] : x.ticks(Math.max(2, Math.floor(width / 110)));
    const apart = times.length > 1 ? times[1] - times[0] : view.span;
    this.time.attr('transform', move(kMargin.left, kMargin.top + height))
        .call(d3.axisBottom(x)
                  .tickValues(times)
                  .tickFormat((d) => formatTime(d, apart, view.to))
                  .tickSizeOuter(0));
    this.#drawMarks(x, view, recording, width);
  }

  // The peak's name above it, and above the line of what is reserved. `peak`: {time, bytes, reserved,
  // text}, or null.
  drawPeak(view, peak, width, height) {
    const shown = peak !== null && peak.time >= view.from && peak.time <= view.to &&
        peak.bytes >= view.bottom;
    this.peak.attr('display', shown ? null : 'none');
    if (!shown) return;
    const x = (peak.time - view.from) / view.span * width;
    const at = (bytes) => height * (1 - (bytes - view.bottom) / view.height);
    const y = Math.max(26, at(peak.bytes));
    const above = Math.max(0, y - at(peak.reserved));
    this.peak.attr('transform', `translate(${kMargin.left + x},${kMargin.top + y})`);
    // Beside the caret, which may stand at the peak: on the side with more room.
    const right = x < width / 2;
    this.peak.select('text').text(peak.text).attr('x', right ? 9 : -9)
        .attr('y', above < 30 ? Math.max(13 - y, -9 - above) : -6)
        .attr(
        'text-anchor', right ? 'start' : 'end');
  }

  // The chosen moment: an upright down to `end` bytes with a handle below, or, out of view, an arrow to
  // where it is.
  drawCaret(view, time, end, width, height) {
    this.caret.attr('display', time === null ? 'none' : null);
    if (time === null) return;
    const inView = time >= view.from && time <= view.to;
    const x = Math.round(Math.min(1, Math.max(0, (time - view.from) / view.span)) * width);
    this.caret.attr('transform', `translate(${kMargin.left + x},${kMargin.top})`)
        .classed('away', !inView);
    const y = height * (1 - (end - view.bottom) / view.height);
    const upright = inView && y > 0 ? `M0,0V${Math.min(height, y)}` : '';
    this.caret.select('.halo').attr('d', upright);
    this.caret.select('.line').attr('d', upright);
    this.caret.select('.handle')
        .attr(
            'd', inView ? `M0,${height - 7}l-6,9v5h12v-5z` :
                time < view.from ? `M2,${height / 2}l10,-8v16z` :
                                   `M-2,${height / 2}l-10,-8v16z`);
  }

  // What PyTorch's own allocator reserved, at the end of its line that is farther from the peak;
  // `null`: unknown.
  drawOther(view, most, peakTime, width, height) {
    this.other.attr('display', most === null ? 'none' : null);
    if (most === null) return;
    const y = height * (1 - (most - view.bottom) / view.height);
    const above = y < 0;
    const peakX = (peakTime - view.from) / view.span * width;
    const onLeft = peakX > width / 2;
    // Below the line, where the name of the peak needs the room above it.
    const kRoom = 400;
    const under = Math.min(width, Math.max(peakX, width - peakX)) < kRoom ? 14 : -5;
    this.other.attr('x', kMargin.left + (onLeft ? 6 : width - 4))
        .attr('text-anchor', onLeft ? 'start' : 'end')
        .attr('y', kMargin.top + (above ? 13 : Math.min(height - 4, y + under)))
        .text(
            above ? `↑ PyTorch reserved up to ${formatBytes(most)}: [ zooms out` :
                    `PyTorch reserved up to ${formatBytes(most)}`);
  }

  // What happened, above the picture: a name where there is room for it.
  #drawMarks(x, view, recording, width) {
    const inView = ({time}) => time >= view.from && time <= Math.min(view.to, recording.duration);
    const all = [...recording.marks, ...recording.happenings].filter(inView).sort(
        (a, b) => a.time - b.time);
    const shown = [];
    let free = 0;  // from this pixel on
    let last = -Infinity;
    for (const mark of all) {
      const at = x(mark.time);
      if (at < last + 3) continue;
      last = at;
      const most = mark.grave ? 40 : 28;
      const text = mark.text.length > most ? `${mark.text.slice(0, most - 1)}…` : mark.text;
      const room = text.length * 6.5;
      // A grave one is named in any case.
      const onLeft = mark.grave && at + room >= width + kMargin.right;
      if (onLeft) shown.filter((other) => other.end > at - room - 12).forEach((other) => other.label = '');
      const named = onLeft || (at >= free && at + room < width + kMargin.right);
      if (named) free = (onLeft ? at : at + room) + 12;
      shown.push({...mark, at, onLeft, end: free, label: named ? text : ''});
    }
    this.marks.attr('transform', `translate(${kMargin.left},${kMargin.top})`);
    const joined = this.marks.selectAll('g').data(shown).join((enter) => {
      const g = enter.append('g');
      g.append('path').attr('d', 'M0,-2l-4,-7h8z');
      g.append('text').attr('y', -4);
      return g;
    });
    joined.attr('class', (d) => d.grave ? 'grave' : null)
        .attr('transform', (d) => `translate(${d.at},0)`);
    joined.select('text')
        .text((d) => d.label)
        .attr('x', (d) => d.onLeft ? -7 : 7)
        .attr('text-anchor', (d) => d.onLeft ? 'end' : 'start');
  }
}
