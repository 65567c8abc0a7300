// SPDX-License-Identifier: Apache-2.0
// The map of pages at the chosen moment: each page a box, as wide as it is large; filled where its
// bytes are in use, hatched if the page is idle, and hatched the other way if it is lent.

const kRow = 26;  // px, with its gap
const kBox = 21;
const kGap = 2;
const kLeastBox = 5;

class PageMap {
  constructor(element, chart) {
    this.chart = chart;
    this.pages = [];
    this.boxes = [];
    this.chosen = -1;
    this.title = make('h3', {}, element);
    this.facts = make('p', {class: 'facts'}, element);
    this.canvas = make('canvas', {tabindex: 0, role: 'img', class: 'map'}, element);
    this.about = make('p', {class: 'about', 'aria-live': 'polite'}, element);
    this.canvas.addEventListener('mousemove', (event) => this.#hover(event));
    this.canvas.addEventListener('mouseleave', () => hideTip());
    this.canvas.addEventListener('click', (event) => this.#choose(this.#boxAt(event)));
    this.canvas.addEventListener('keydown', (event) => this.#key(event));
  }

  // Its place in the picture; texts name it.
  show(moment) {
    const {recording} = this.chart;
    this.pages = pagesAt(recording, moment);
    this.chosen = -1;
    this.title.textContent = recording.isMoment ? 'Pages' : `Pages at ${formatTime(moment.time)}`;
    const held = d3.sum(this.pages, (page) => page.bytes);
    const used = d3.sum(this.pages, (page) => d3.sum(page.used, (part) => part.bytes));
    const idle = this.pages.filter((page) => page.heap < 0);
    const aliases = d3.sum(this.pages, (page) => Math.max(0, page.mappings.length - 1));
    this.facts.textContent = this.pages.length === 0 ?
        'No page is there at this moment.' :
        `${plural(this.pages.length, 'page')}, ${formatBytes(held)}: ${
            formatBytes(used)} in use, ` +
            `${plural(idle.length, 'page')} idle (${formatBytes(d3.sum(idle, (p) => p.bytes))}), ` +
            `${formatCount(aliases)} further addresses.${this.#lentText()}`;
    this.canvas.hidden = this.about.hidden = this.pages.length === 0;
    this.canvas.setAttribute('aria-label', `Map of pages: ${this.facts.textContent}`);
    this.about.textContent =
        'A box is a page, as wide as it is large: filled where blocks use it, in their colours, hatched if idle, a dot ' +
        'below for each further address. Point at one, or choose it with the arrow keys.';
    this.draw();
  }

  #lentText() {
    const {recording} = this.chart;
    const lent = d3.rollup(this.pages.filter((page) => page.lender > 0), (some) => d3.sum(some, (p) => p.bytes),
                           (page) => page.lender);
    if (lent.size === 0) return '';
    const each = [...lent].map(([pool, bytes]) => `${formatBytes(bytes)} of graph ${recording.poolName(pool)}`);
    return ` Lent scratch, hatched over its blocks: ${each.join(', ')}.`;
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (this.pages.length === 0 || width === 0) return;
    this.#place(width);
    const context = sized(this.canvas, width, (d3.max(this.boxes, (box) => box.row) + 1) * kRow);
    context.lineWidth = 1;
    this.boxes.forEach((box, i) => this.#drawBox(context, box, i));
  }

  // Rows of boxes, larger where there are fewer pages.
  #place(width) {
    const held = d3.sum(this.pages, (page) => page.bytes);
    const rows = Math.max(2, Math.min(8, Math.ceil(this.pages.length * 14 / width)));
    const scale = rows * width * 0.85 / held;
    let x = 0;
    let row = 0;
    this.boxes = this.pages.map((page) => {
      const wide = Math.min(width, Math.max(kLeastBox, page.bytes * scale - kGap));
      if (x > 0 && x + wide > width) {
        x = 0;
        ++row;
      }
      const box = {page, x, row, width: wide};
      x += wide + kGap;
      return box;
    });
  }

  #drawBox(context, {page, x, row, width}, index) {
    const y = row * kRow + 1;
    const {pixels} = this.chart;
    context.fillStyle = theme.empty;
    context.fillRect(x, y, width, kBox);
    if (page.heap < 0) this.#hatch(context, x, y, width, theme.faint);
    const parts = page.used.map(
        ({from, bytes, block}) => ({left: x + from / page.bytes * width, wide: bytes / page.bytes * width, block}));
    for (const {left, wide, block} of parts) {
      context.fillStyle = block === undefined ? theme.live : cssOf(pixels[block]);
      context.fillRect(left, y, Math.max(1, wide), kBox);
    }
    context.fillStyle = theme.background;
    for (const {left, wide} of parts)
      if (wide > 4) context.fillRect(left, y + 1, 0.6, kBox - 2);
    context.fillStyle = theme.chosen;
    for (const {left, wide, block} of parts)
      if (block === this.chart.block) context.fillRect(left, y, Math.max(2, wide), kBox);
    if (page.lender > 0) this.#hatch(context, x, y + kBox, width, theme.text, -kBox);
    context.strokeStyle = index === this.chosen ? theme.text : page.heap < 0 ? theme.faint : theme.soft;
    context.lineWidth = index === this.chosen ? 2.5 : 1;
    context.strokeRect(x + 0.5, y + 0.5, width - 1, kBox - 1);
    // An alias for each tick below.
    context.fillStyle = theme.text;
    for (let i = 1; i < page.mappings.length && 3 * i < width; ++i) {
      context.fillRect(x + 3 * i - 2, y + kBox + 1, 2, 2);
    }
  }

  // From its top at `y`; from its bottom, if `height` is negative.
  #hatch(context, x, y, width, colour, height = kBox) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = colour;
    context.beginPath();
    for (let i = -kBox; i < width; i += 5) {
      context.moveTo(x + i, y + height);
      context.lineTo(x + i + kBox, y);
    }
    context.stroke();
    context.restore();
  }

  textOf(page) {
    const {recording} = this.chart;
    const used = d3.sum(page.used, (part) => part.bytes);
    const who =
        page.heap < 0 ? 'idle' : `first used by the heap of ${describeHeap(recording, page.heap)}`;
    const lent = page.lender > 0 ? `, scratch that graph ${recording.poolName(page.lender)} lends` : '';
    const [first, ...more] = page.mappings;
    const where = first === undefined ?
        'not mapped' :
        `mapped at ${formatAddress(first)}${
            more.length === 0 ? '' :
                                ` and again at ${more.slice(0, 4).map(formatAddress).join(', ')}` +
                    (more.length > 4 ? ` and ${plural(more.length - 4, 'other place')}` : '')}`;
    return `Page ${page.id}: ${formatBytes(page.bytes)}, ${formatBytes(used)} in use by ` +
        `${plural(page.used.length, 'block')}, ${who}${lent}, ${where}.`;
  }

  #boxAt(event) {
    const row = Math.floor(event.offsetY / kRow);
    return this.boxes.findIndex(
        (box) => box.row === row && event.offsetX >= box.x && event.offsetX <= box.x + box.width);
  }

  #hover(event) {
    const box = this.#boxAt(event);
    if (box < 0) return hideTip();
    showTip(event, [this.textOf(this.boxes[box].page)]);
  }

  #choose(index) {
    if (index < 0) return;
    this.chosen = index;
    this.about.textContent = this.textOf(this.boxes[index].page);
    this.draw();
  }

  #key(event) {
    const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (by === undefined || this.boxes.length === 0) return;
    event.preventDefault();
    event.stopPropagation();
    this.#choose(Math.min(this.boxes.length - 1, Math.max(0, this.chosen + by)));
  }
}

// What PyTorch's own allocator held, likewise: a box is a segment.
class SegmentMap extends PageMap {
  show() {
    const {recording} = this.chart;
    const {held, failure} = recording.origin;
    this.title.textContent = `PyTorch's segments ${failure === undefined ? 'at its peak' : 'when the request failed'}`;
    const blocks = new Map(liveBlocks(recording, held.step).map((b) => [recording.addressOf(b), b]));
    this.pages = held.segments.map(([address, bytes, stream, why, used]) => ({
      address, bytes, stream, why, heap: used.length === 0 ? -1 : 0, mappings: [],
      used: used.map(([from, length]) => ({from, bytes: length, block: blocks.get(address + from)}))
    }));
    this.facts.textContent = `${plural(this.pages.length, 'segment')}, ${formatBytes(held.reserved)}: ${
        formatBytes(held.live)} in blocks; the largest piece without one has ${formatBytes(held.largest)}.`;
    this.canvas.setAttribute('aria-label', `Map of PyTorch's segments: ${this.facts.textContent}`);
    this.about.textContent =
        'A box is a segment, as wide as it is large: filled where blocks are, hatched if it has none. A request fits only ' +
        'into one piece of one segment, of its own stream and kind.';
    this.draw();
  }

  textOf({address, bytes, stream, why, used}) {
    const free = bytes - d3.sum(used, (part) => part.bytes);
    const [, meaning] = this.chart.recording.origin.held.causes[why];
    return `Segment at ${formatAddress(address)}: ${formatBytes(bytes)} of stream ${stream}, ${
        plural(used.length, 'block')}; ${formatBytes(free)} without a block${free === 0 ? '' : `, ${meaning}`}.`;
  }
}

function describeHeap(recording, heap) {
  const [, stream, pool] = recording.heaps[heap];
  return recording.streamName(stream) + (pool === 0 ? '' : `, ${recording.poolName(pool)}`);
}
