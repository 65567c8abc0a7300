// SPDX-License-Identifier: Apache-2.0
// Below the chart, on its scale of time: what is reserved and not live, which streams were made to
// wait, when the host waited, and calls of the driver.

const kLane = 20;  // px, with its gap
const kLaneHeight = 17;
const kMostWaiters = 6;

class Lanes {
  constructor(element, chart) {
    this.chart = chart;
    const {recording: r} = chart;
    this.element = make('div', {class: 'lanes'}, element);
    if (r.isMoment) this.element.hidden = true;
    this.names = make('div', {class: 'names'}, this.element);
    this.canvas = make('canvas', {role: 'img'}, this.element);
    this.lanes = [this.#idleLane(r), ...this.#waitLanes(r), this.#hostLane(r), this.#driverLane(r)].filter(Boolean);
    for (const lane of this.lanes) make('span', {title: lane.title}, this.names, lane.name);
    this.canvas.setAttribute('aria-label', this.lanes.map((lane) => lane.title).join('; '));
    this.canvas.addEventListener('pointermove', (event) => this.#hover(event));
    this.canvas.addEventListener('pointerleave', () => hideTip());
  }

  #idleLane(r) {
    const series = notLive(r);
    if (series.time.length === 0) return null;
    return {
      name: 'not live',
      title: `Reserved and not live: ${formatBytes(series.peak)} at most`,
      note: `up to ${formatBytes(series.peak)}`,
      peak: series.peak,
      height: (from, to) => series.most(from, to) / Math.max(1, series.peak),
      colour: () => theme.idle,
      text: (from, to) => `${formatBytes(series.most(from, to))} reserved and not live`
    };
  }

  #waitLanes(r) {
    const {waits} = r;
    const times = new Map();
    waits.stream.forEach((stream, i) => {
      if (!times.has(stream)) times.set(stream, []);
      times.get(stream).push(waits.time[i]);
    });
    const all = [...times].sort((a, b) => b[1].length - a[1].length);
    const rest = all.splice(all.length > kMostWaiters ? kMostWaiters - 1 : kMostWaiters);
    const lane = (name, who, at, colour) => ({
      ...Lanes.#counted(at, (n) => `${who} waited ${plural(n, 'time')} for another stream`),
      name: `waits: ${name}`,
      title: `${who} was made to wait for another stream: ${plural(at.length, 'time')}`,
      note: plural(at.length, 'wait'),
      colour
    });
    const lanes = all.map(
        ([stream, at]) => lane(
            formatStream(r.streams[stream]).replace('stream ', '').replace(', captured', 'c'),
            r.streamName(stream), at,
            () => this.chart.colours.streamColour(r.streams[stream])));
    if (rest.length > 0) {
      const at = rest.flatMap(([, one]) => one).sort((a, b) => a - b);
      lanes.push(lane('rest', `${plural(rest.length, 'other stream')}`, at, () => theme.faint));
    }
    return lanes;
  }

  // How long the host waited is known: a wait is as wide as it was long.
  #hostLane({hostWaits: waits}) {
    if (waits.length === 0) return null;
    const within = (from, to) => waits.filter((wait) => wait.from < to && wait.to >= from);
    const tell = (some) => `the host waited ${plural(some.length, 'time')}, ${
        formatDuration(d3.sum(some, ({took}) => took))} in all`;
    return {
      name: 'host waits',
      title: `For a stream, ${tell(waits)}, ${formatDuration(d3.max(waits, ({took}) => took))} at most`,
      note: `${plural(waits.length, 'wait')}, ${formatDuration(d3.sum(waits, ({took}) => took))}`,
      colour: () => theme.grave,
      height: (from, to) => waits.some((wait) => wait.from < to && wait.to >= from) ? 1 : 0,
      text: (from, to) => {
        const some = within(from, to);
        return some.length === 0 ? 'the host did not wait' : tell(some);
      },
      within
    };
  }

  #driverLane(r) {
    const {kind, time, bytes} = r.pageEvents;
    const all = [];  // where among the events of pages
    kind.forEach((k, i) => k <= kPageEvent.unmap && all.push(i));
    if (all.length === 0) return null;
    const times = all.map((i) => time[i]);
    const within = (from, to) => {
      const counts = {create: 0, release: 0, map: 0, unmap: 0, created: 0, released: 0};
      for (const i of all.slice(countBelow(times, from), countBelow(times, to))) {
        for (const what of ['create', 'release', 'map', 'unmap']) counts[what] += kind[i] === kPageEvent[what] ? 1 : 0;
        if (kind[i] === kPageEvent.create) counts.created += bytes[i];
        if (kind[i] === kPageEvent.release) counts.released += bytes[i];
      }
      return counts;
    };
    const tell = (from, to) => {
      const {create, release, map, unmap, created, released} = within(from, to);
      return [
        [create, `${plural(create, 'page')} created (${formatBytes(created)})`],
        [release, `${formatCount(release)} released (${formatBytes(released)})`],
        [map, `${formatCount(map)} mapped`], [unmap, `${formatCount(unmap)} unmapped`]
      ].filter(([count]) => count > 0).map(([, text]) => text).join(', ');
    };
    return {
      ...Lanes.#counted(
          times, (n, from, to) => `${plural(n, 'call')} of the driver${n === 0 ? '' : `: ${tell(from, to)}`}`),
      name: 'driver',
      title: `${plural(all.length, 'call')} of the driver: ${tell(0, Infinity)}`,
      note: `${plural(all.length, 'call')}: ${tell(0, Infinity)}`,
      colour: () => theme.soft,
      within
    };
  }

  // A lane whose bars are how many of `times` (rising) fall into a column; the height grows with the
  // logarithm, so that one is seen beside a thousand.
  static #counted(times, text) {
    const count = (from, to) => countBelow(times, to) - countBelow(times, from);
    const high = (some) => some === 0 ? 0 : Math.min(1, 0.35 + Math.log2(some) / 10);
    return {
      height: (from, to) => high(count(from, to)),
      text: (from, to) => text(count(from, to), from, to),
      countIn: count
    };
  }

  draw() {
    const {width, recording, view} = this.chart;
    const perPixel = view.span / width;
    if (!width || this.lanes.length === 0 || recording.isMoment) return;
    const context = sized(this.canvas, width, this.lanes.length * kLane);
    this.canvas.style.width = `${width}px`;
    context.font = '11px system-ui, "Liberation Sans", "DejaVu Sans", sans-serif';
    this.lanes.forEach((lane, i) => {
      const bottom = i * kLane + kLaneHeight;
      context.fillStyle = theme.empty;
      context.fillRect(0, i * kLane, width, kLaneHeight);
      context.fillStyle = lane.colour();
      for (let x = 0; x < width; ++x) {
        const from = view.from + x * perPixel;
        if (from > recording.duration) break;
        const to = view.from + (x + 1) * perPixel;
        const high = lane.height(from, to) * kLaneHeight;
        if (high > 0) context.fillRect(x, bottom - Math.max(1, high), 1, Math.max(1, high));
      }
      context.fillStyle = theme.empty;
      context.globalAlpha = 0.85;
      context.fillRect(0, i * kLane, context.measureText(lane.note).width + 10, kLaneHeight);
      context.globalAlpha = 1;
      context.fillStyle = theme.text;
      context.fillText(lane.note, 5, bottom - 4.5);
    });
  }

  #hover(event) {
    const lane = this.lanes[Math.floor(event.offsetY / kLane)];
    if (lane === undefined) return hideTip();
    const {width, view} = this.chart;
    const [from, to] = [-3, 4].map((by) => view.from + (event.offsetX + by) / width * view.span);
    showTip(event, [lane.title, `${lane.text(from, to)}, about ${formatTime(Math.max(0, (from + to) / 2))}`]);
  }
}
