// SPDX-License-Identifier: Apache-2.0
// One recording: its memory over time, what can be done with it by pointer, and what goes with it
// (the overview, the map of pages).

const kPlotHeight = 420;

class Chart {
  // `page`: {view, colours, frames, panels (an element), onChoose(chart, block), mark(chart, blocks)}
  constructor(parent, recording, page, number) {
    Object.assign(this, {recording, page, view: page.view, colours: page.colours});
    this.block = -1;  // the chosen one
    this.element = make('section', {class: 'chart', 'aria-label': recording.source}, parent);
    this.number = number;
    const plot = make('div', {class: 'plot'}, this.element);
    this.canvas = make(
        'canvas', {
          tabindex: 0,
          role: 'application',
          'data-chart': number,
          'aria-roledescription': 'chart of memory over time',
          'aria-label': `Memory over time of ${recording.source}. ? lists the keys.`
        },
        plot);
    this.axes = new Axes(plot);
    this.empty = make('p', {class: 'empty', hidden: ''}, plot);
    this.lanes = new Lanes(this.element, this);
    this.overview = new Overview(this.element, this.view);
    this.flame = new Flame(this.element, this);
    this.map = new PageMap(make('div', {class: 'pages'}, this.element), this);
    if (recording.origin.held !== undefined)
      this.segments = new SegmentMap(make('div', {class: 'pages segments'}, this.element), this);
    this.panel = new MomentPanel(page.panels, this);
    this.tiles = new Tiles();
    this.view.onChange((source) => this.#moved(source));
    this.#listen();
  }

  // The file's name, and what holds for all of it.
  makeHead(parent) {
    const {recording: r} = this;
    const element = make('div', {class: 'head'}, parent);
    const head = make('h1', {}, element, r.source || `Recording ${this.number + 1}`);
    make(
        'span', {class: 'sub'}, head,
        ` ${[r.program, r.device].filter((t) => t !== '' && t !== r.source).join(', on ')}`);
    this.facts = make('p', {class: 'facts'}, element);
    if (r.origin.devices !== '') make('p', {class: 'facts'}, element, r.origin.devices);
    const warnings = [];
    if (r.damage !== '') warnings.push(`Incomplete: ${r.damage}`);
    if (r.dropped > 0)
      warnings.push(`${plural(r.dropped, 'event')} came too fast to be written, and are missing.`);
    if (r.isMoment && r.count > 0)
      warnings.push('One moment only: nothing happened while it was recorded.');
    for (const text of warnings) make('p', {class: 'warning', role: 'note'}, element, text);
  }

  // What is shown. `found`: by block, 1 or 0, or null.
  setSelection(selection) {
    this.selection = selection;
    this.stack = new Stack(selection);
    this.tiles.use(null, false);
    this.#tellFacts();
  }

  setColours(found) {
    this.found = found;
    this.pixels = this.colours.pixels(this.recording, found, theme.background);
    this.#markChosen();
    this.#repaint(true);
    this.panel.draw();
  }

  // The chosen block stands out; `unmarked` is the colour that it has else.
  #markChosen() {
    if (this.block < 0) return;
    this.unmarked = this.pixels[this.block];
    this.pixels[this.block] = asPixel(theme.chosen);
  }

  #repaint(keep) {
    if (!this.width) return;
    this.labels = null;
    this.tiles.use(new Painter(this.selection, this.pixels, this.rows), keep);
    this.draw();
  }

  #tellFacts() {
    const {recording: r, selection} = this;
    const all = selection.matches === null;
    const peak = selection.peak();
    const live = selection.liveAfter(peak);
    const reserved = r.reservedBytes.length === 0 ? 0 : d3.max(r.reservedBytes);
    const count = all ? r.count : d3.sum(selection.matches);
    const at = peak < 0 || r.isMoment ? '' : ` at ${formatTime(selection.time[peak])}`;
    const parts = [
      `${plural(count, 'block')}${all ? '' : ` of ${formatCount(r.count)}`}`,
      `most live ${formatBytes(live)}${at}`,
      `${r.origin.pytorchs ? 'Weir would hold' : 'most reserved'} ${formatBytes(reserved)}`
    ];
    if (all && live > 0 && reserved > 0 && !r.origin.pytorchs)
      parts.push(`reserved / live ${(reserved / live).toFixed(4)}`);
    if (!r.isMoment) parts.push(`lasts ${formatDuration(r.duration)}`);
    this.facts.textContent = parts.join(' · ');
    this.empty.hidden = count > 0;
    this.empty.textContent =
        all ? 'Nothing was allocated in this recording.' : 'No block is left by these filters.';
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(200, this.element.clientWidth - kMargin.left - kMargin.right);
    this.columns = Math.round(this.width * ratio);
    this.rows = Math.round(kPlotHeight * ratio);
    this.canvas.width = this.columns;
    this.canvas.height = this.rows;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${kPlotHeight}px`;
    this.zoom.extent([[0, 0], [this.width, kPlotHeight]])
        .translateExtent([[0, -Infinity], [this.width, Infinity]])
        .scaleExtent([1, Math.max(1, this.view.duration / kLeastSpan)]);
    this.overview.resize(this.width);
    this.#repaint(false);
    this.redraw();
  }

  // All but the picture of the blocks.
  redraw() {
    this.overview.draw(this.selection, this.view.usual);
    this.overview.update(null);
    this.map.draw();
    this.segments?.draw();
    this.flame.draw();
    this.#followView();
    this.draw();
  }

  #listen() {
    const canvas = d3.select(this.canvas);
    // D3 5 has the event in d3.event; later versions hand it over.
    this.zoom = d3.zoom()
                    .filter((argument) => {
                      const event = d3.event || argument;
                      return !event.shiftKey && !event.button;
                    })
                    .on('zoom', (argument) => this.#zoomed(d3.event || argument));
    canvas.call(this.zoom).on('dblclick.zoom', null);
    this.canvas.addEventListener('wheel', (event) => this.#wheelBytes(event), {passive: false});
    this.canvas.addEventListener('pointermove', (event) => this.#hover(event));
    this.canvas.addEventListener('pointerleave', () => this.#leave());
    this.canvas.addEventListener('click', (event) => this.#click(event));
    this.canvas.addEventListener('dblclick', () => this.view.showAll());
  }

  #zoomed(event) {
    const transform = event.transform;
    const rise = transform.y - (this.lastY ?? 0);
    this.lastY = transform.y;
    if (this.following || !event.sourceEvent) return;
    const span = this.view.duration / transform.k;
    const from = -transform.x / transform.k / this.width * this.view.duration;
    this.view.setTime(from, from + span, this);
    if (/move/.test(event.sourceEvent.type) && this.view.height < this.view.usual) {
      this.view.rise(rise / kPlotHeight);
    }
  }

  #wheelBytes(event) {
    if (!event.shiftKey) return;
    event.preventDefault();
    const at = this.view.bottom + (1 - event.offsetY / kPlotHeight) * this.view.height;
    this.view.zoomBytes(2 ** ((event.deltaY || event.deltaX) / 400), at);
  }

  #moved(source) {
    if (!this.width) return;
    this.labels = null;
    if (source !== this) this.#followView();
    this.overview.update(source);
    this.draw();
  }

  // d3.zoom has a state of its own.
  #followView() {
    const k = this.view.duration / this.view.span;
    const x = -this.view.from / this.view.duration * this.width * k;
    this.following = true;
    this.zoom.transform(
        d3.select(this.canvas), d3.zoomIdentity.translate(x, this.lastY ?? 0).scale(k));
    this.following = false;
  }

  get scale() {
    return {
      time: this.view.span / this.columns,
      bytes: this.view.height / this.rows,
      bottom: this.view.bottom
    };
  }
  get height() {
    return kPlotHeight;
  }
  get firstColumn() {
    return Math.round(this.view.from / this.scale.time);
  }

  // `picture`: of the picture more is painted; all else is as it was.
  draw(picture = false) {
    if (!this.width) return;
    this.pictureOnly = picture && (this.pictureOnly || !this.waiting);
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#frame(this.pictureOnly);
    });
  }

  #frame(pictureOnly) {
    const begin = performance.now();
    const context = this.canvas.getContext('2d');
    context.clearRect(0, 0, this.columns, this.rows);
    context.imageSmoothingEnabled = false;
    this.finished = this.tiles.draw(context, this.scale, this.firstColumn, this.columns);
    this.#drawCurves(context);
    this.#drawLabels(context);
    this.#drawHover(context);
    if (!pictureOnly) {
      this.#drawAxes();
      this.lanes.draw();
    }
    this.page.frames.push(performance.now() - begin);
    if (!this.finished) this.draw(true);
  }

  #y(bytes) {
    return this.rows - (bytes - this.view.bottom) / this.scale.bytes;
  }
  #x(time) {
    return Math.round(time / this.scale.time) - this.firstColumn;
  }

  // When the view rests: labels that jump help nobody.
  #drawLabels(context) {
    if (this.labels) return drawLabels(context, this.labels, this.columns / this.width);
    clearTimeout(this.resting);
    if (!this.finished) return;
    this.resting = setTimeout(() => {
      this.labels = placeLabels(this);
      this.draw();
    }, 150);
  }

  // What is reserved, and, where only some blocks are shown, what is live in all.
  #drawCurves(context) {
    const {recording: r, scale} = this;
    const first = this.firstColumn;
    const last = Math.min(this.columns, Math.floor(Math.max(r.duration, 1) / scale.time) - first);
    const begin = Math.max(0, -first);
    const at = (x) => (first + x) * scale.time;
    const ratio = window.devicePixelRatio || 1;
    context.beginPath();
    this.#traceReserved(context, begin, last, at);
    context.strokeStyle = theme.reserved;
    context.lineWidth = 1.5 * ratio;
    context.stroke();
    this.#drawOther(context, begin, last, at, ratio);
    const {all, selection} = this;
    const live = (x) => all.liveAfter(all.stepOfColumn(first + x, scale.time));
    if (selection.matches !== null) {
      context.beginPath();
      for (let x = begin; x <= last; ++x) context.lineTo(x, Math.round(this.#y(live(x))) - 0.5);
      context.strokeStyle = theme.soft;
      context.lineWidth = window.devicePixelRatio || 1;
      context.stroke();
      return;
    }
    // No uprights: they would hide the blocks of a short peak.
    context.fillStyle = theme.liveLine;
    for (let x = begin; x <= last; ++x)
      context.fillRect(x, Math.round(this.#y(live(x))) - 1, 1, 1.5);
  }

  // Reserved memory changes in steps: what it was in each column, its highest, what it is then.
  #traceReserved(context, begin, last, at) {
    const {reservedTime, reservedBytes} = this.recording;
    const to = (x, bytes) => context.lineTo(x, Math.round(this.#y(bytes)) - 0.5);
    let change = countUpTo(reservedTime, at(begin));
    let held = change === 0 ? 0 : reservedBytes[change - 1];
    for (let x = begin; x <= last; ++x) {
      const before = held;
      let most = held;
      for (const end = at(x + 1); change < reservedTime.length && reservedTime[change] <= end; ++change) {
        held = reservedBytes[change];
        if (held > most) most = held;
      }
      to(x, before);
      if (most !== before) to(x, most);
      if (held !== before && held !== most) to(x, held);
    }
  }

  // PyTorch's own reserved memory, dotted: at each change, or, where only its peak is known, that.
  #drawOther(context, begin, last, at, ratio) {
    const {recording: r} = this;
    if (r.otherPeakReserved === 0) return;
    context.beginPath();
    for (let x = begin; x <= last; ++x) context.lineTo(x, Math.round(this.#y(r.otherAt(at(x)))) - 0.5);
    context.setLineDash([2 * ratio, 4 * ratio]);
    context.strokeStyle = theme.other;
    context.lineWidth = 2 * ratio;
    context.stroke();
    context.setLineDash([]);
  }

  #drawHover(context) {
    const x = this.hover === undefined ? -1 : this.#x(this.hover);
    if (x < 0 || x > this.columns) return;
    context.fillStyle = theme.faint;
    context.fillRect(x, 0, 1, this.rows);
  }

  #drawAxes() {
    const {axes, view, recording, selection, width} = this;
    axes.draw(view, recording, width, kPlotHeight);
    const step = selection.peak();
    const bytes = selection.liveAfter(step);
    const time = selection.time[step];
    axes.drawOther(
        view, recording.otherPeakReserved > 0 ? recording.otherPeakReserved : null, time ?? 0,
        width, kPlotHeight);
    axes.drawPeak(
        view, step < 0 || recording.isMoment ? null : {
          time,
          bytes,
          reserved: recording.reservedAt(time),
          text: `${recording.showsPeak ? 'peak' : 'most'} ${formatBytes(bytes)} at ${recording.roughTime(time)}`
        },
        width, kPlotHeight);
    axes.drawCaret(
        view, this.moment === undefined || recording.isMoment ? null : this.moment.time,
        this.#caretEnd(), width, kPlotHeight);
  }

  // Down to how many bytes the caret is drawn: it must not cover a peak that is hardly wider than it.
  #caretEnd() {
    if (this.moment === undefined) return 0;
    const {all, view, width, moment: {step, time}} = this;
    const live = all.liveAfter(step);
    const apart = 4 * view.span / width;
    const isNarrow = [time - apart, time + apart].every((at) => all.liveAfter(all.stepAt(at)) < 0.95 * live);
    return isNarrow ? live : 0;
  }

  // The step and the block under a point of the canvas.
  at(x, y) {
    const column = Math.floor(x * this.columns / this.width) + this.firstColumn;
    const {painter} = this.tiles;
    const step = painter.stepOf(column, this.scale.time);
    if (step < -1) return {block: -1, step: -1, time: null};
    this.stack.moveTo(step);
    const height = this.view.bottom +
        (this.rows - 0.5 - Math.floor(y * this.rows / kPlotHeight)) * this.scale.bytes;
    // Of the time that the column stands for, the moment that it shows.
    const time = Math.max(column * this.scale.time, step < 0 ? 0 : this.selection.time[step]);
    return {block: this.stack.blockAt(height), step, time: Math.min(time, this.recording.duration)};
  }

  #hover(event) {
    if (event.buttons !== 0) return hideTip();
    const {block, step, time} = this.at(event.offsetX, event.offsetY);
    this.hover = time ?? undefined;
    this.draw();
    if (time === null) return hideTip();
    const {recording: r} = this;
    const lines =
        [block < 0 ? (r.isMoment ? 'Now' : formatTime(time)) :
                     `Block ${formatCount(block)}: ${formatBytes(r.bytes[block])}`];
    if (block >= 0) {
      lines.push(describeHeap(r, r.heap[block]));
      const end = r.isLiveAtEnd(block) ? 'the end' : formatTime(r.end[block]);
      if (!r.isMoment) lines.push(`lives from ${formatTime(r.begin[block])} to ${end}`);
      const [call] = callsOf(r, r.stack[block]);
      if (call !== undefined) lines.push(callText(call));
    }
    lines.push(
        `${formatBytes(this.selection.liveAfter(step))} live, ${formatBytes(r.reservedAt(time))} ${
            r.origin.pytorchs ? 'that Weir would hold' : 'reserved'}` +
        (r.isMoment ? '' : ` at ${formatTime(time)}`));
    showTip(event, lines);
  }

  #leave() {
    this.hover = undefined;
    hideTip();
    this.draw();
  }

  #click(event) {
    const {block, step, time} = this.at(event.offsetX, event.offsetY);
    if (time === null) return;
    this.setMoment(this.#stepOfRecording(step, time), time);
    this.page.onChoose(this, block);
  }

  // The last step of the recording at a point of the picture: that of the selection, or a later one
  // of a block that is not shown.
  #stepOfRecording(step, time) {
    const is = this.selection.toRecording(step);
    return is >= 0 && this.recording.stepTime[is] >= time ? is : this.all.stepAt(time);
  }

  // `step`: of the recording.
  setMoment(step, time = this.recording.stepTime[step] ?? 0) {
    this.moment = {step, time};
    this.map.show(this.moment);
    this.panel.show(this.moment, this.map.pages);
    this.flame.show(this.moment, this.panel.figures);
    this.draw();
  }

  // Chooses the moment of the peak, and shows the part around it where more is live than half way up
  // from the last trough, with as much time on either side.
  fitPeak() {
    const {selection, recording: r, view} = this;
    const step = selection.peak();
    if (step < 0) return;
    this.setMoment(selection.toRecording(step));
    if (r.isMoment) return;
    const {live, time} = selection;
    const half = (live[step] + selection.liveAfter(troughBefore(selection, step))) / 2;
    let first = step;
    while (first > 0 && live[first - 1] > half) --first;
    let after = step;
    while (after < live.length && live[after] > half) ++after;
    const to = time[after] ?? r.duration;
    const width = Math.max(to - time[first], kLeastSpan);
    view.showBytes();
    view.setTime(time[first] - width, to + width);
  }

  // Marks a block as the chosen one; -1: none.
  choose(block) {
    if (this.block >= 0) this.pixels[this.block] = this.unmarked;
    this.block = block;
    this.#markChosen();
    this.#repaint(true);
    this.map.draw();
    this.segments?.draw();
  }

  // Brings a block into view, and the moment to its beginning.
  goTo(block) {
    const {begin, end, beginStep, duration} = this.recording;
    this.view.show(begin[block], Math.min(end[block], duration));
    this.setMoment(beginStep[block]);
  }

  // The block above (1) or below (-1) the chosen one at the chosen moment.
  neighbour(by) {
    this.stack.moveTo(this.selection.fromRecording(this.moment.step));
    const {next, previous, ground} = this.stack;
    const {beginStep, endStep} = this.recording;
    const {block, moment: {step}, selection: {matches}} = this;
    const lives = block >= 0 && beginStep[block] <= step && endStep[block] > step &&
        (matches === null || matches[block] === 1);
    const from = lives ? block : ground;
    const to = by > 0 ? next[from] : previous[from];
    return to === ground ? -1 : to;
  }

  // The blocks whose memory a block was the first to get.
  donors(block) {
    if (this.donorsOf === undefined) {
      this.donorsOf = new Map();
      this.recording.reusedBy.forEach((next, donor) => {
        if (next < 0) return;
        if (!this.donorsOf.has(next)) this.donorsOf.set(next, []);
        this.donorsOf.get(next).push(donor);
      });
    }
    return this.donorsOf.get(block) ?? [];
  }
}
