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
      const text = mark.text.length > 28 ? `${mark.text.slice(0, 27)}…` : mark.text;
      const named = at >= free && at + text.length * 6.5 < width + kMargin.right;
      if (named) free = at + text.length * 6.5 + 12;
      shown.push({...mark, at, label: named ? text : ''});
    }
    this.marks.attr('transform', `translate(${kMargin.left},${kMargin.top})`);
    const joined = this.marks.selectAll('g').data(shown).join((enter) => {
      const g = enter.append('g');
      g.append('path').attr('d', 'M0,-2l-4,-7h8z');
      g.append('text').attr('x', 7).attr('y', -4);
      return g;
    });
    joined.attr('class', (d) => d.grave ? 'grave' : null)
        .attr('transform', (d) => `translate(${d.at},0)`);
    joined.select('text').text((d) => d.label);
  }
}
