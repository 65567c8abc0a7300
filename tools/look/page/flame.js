// SPDX-License-Identifier: Apache-2.0
// Stacks as an icicle: the outermost caller on top, each call below its caller, as wide as the bytes
// that it has live at the chosen moment, or as the allocations that it made. Frames of PyTorch's and
// Python's own are folded away, unless they are asked for.

const kFlameRow = 20;
const kLeastWidth = 0.003;  // of the whole: narrower ones are left out

class Flame {
  constructor(element, chart) {
    this.chart = chart;
    this.by = 'bytes';
    this.whole = false;
    this.element = make('div', {class: 'flame'}, element);
    this.element.hidden = !chart.recording.hasStacks;
    const head = make('div', {class: 'subhead'}, this.element);
    this.title = make('h3', {}, head);
    const choice = make('span', {class: 'choice', role: 'group', 'aria-label': 'Width of a call'}, head);
    this.buttons = ['bytes', 'allocations'].map((by) => {
      const button = make('button', {type: 'button', 'data-by': by}, choice, by);
      button.addEventListener('click', () => {
        this.by = by;
        this.build();
      });
      return button;
    });
    const folds = chart.recording.wholeStacks.some(({length}, i) => length > chart.recording.callsOfWhole(i).length);
    this.all = make('button', {type: 'button', class: 'all-frames', 'aria-pressed': false}, head, 'all frames');
    this.all.hidden = !folds;
    this.all.addEventListener('click', () => {
      this.whole = !this.whole;
      this.all.setAttribute('aria-pressed', this.whole);
      this.build();
    });
    this.facts = make('p', {class: 'facts'}, this.element);
    this.graph = make('div', {class: 'graph'}, this.element);
  }

  // `figures`: of figuresAt().
  show(moment, figures) {
    this.moment = moment;
    this.figures = figures;
    this.build();
  }

  build() {
    const {recording: r, all} = this.chart;
    if (!r.hasStacks || this.figures === undefined) return;
    for (const button of this.buttons)
      button.setAttribute('aria-pressed', button.dataset.by === this.by);
    const byBytes = this.by === 'bytes';
    const when = r.isMoment ? 'in this snapshot' :
        this.moment.step === all.peak() ? 'at the peak' : `at ${formatTime(this.moment.time)}`;
    this.title.textContent = byBytes ? `Stacks ${when}, by bytes` : 'Stacks by number of allocations';
    this.files = new Map();  // each with the number of its colour
    this.root = {frame: -1, value: 0, children: new Map()};
    const stacks = this.whole ? r.wholeStacks : r.stacks;
    this.#values(byBytes, stacks.length).forEach((value, stack) => value > 0 && this.#add(stacks[stack], value));
    this.focus = this.root;
    this.draw();
  }

  // By stack: bytes, or how many allocations.
  #values(byBytes, count) {
    const {recording: r} = this.chart;
    const stacks = this.whole ? r.wholeStack : r.stack;
    const values = new Float64Array(count);
    if (byBytes) {
      for (const block of this.figures.blocks) values[stacks[block]] += r.bytes[block];
    } else {
      stacks.forEach((stack, block) => values[stack] += r.wasLiveAtBegin(block) ? 0 : 1);
    }
    return values;
  }

  #add(frames, value) {
    let node = this.root;
    node.value += value;
    for (let i = frames.length - 1; i >= 0; --i) node = this.#child(node, frames[i], value);
    if (frames.length === 0) this.#child(node, -1, value);
  }

  #child(node, frame, value) {
    // Calls of one function from several of its caller's lines are one.
    const [name, file] = frame < 0 ? ['', ''] : this.chart.recording.frames[frame];
    const key = `${name}\n${file}`;
    let child = node.children.get(key);
    if (child === undefined)
      node.children.set(key, child = {frame, value: 0, children: new Map(), hasOneLine: true});
    child.hasOneLine &&= child.frame === frame;
    child.value += value;
    return child;
  }

  #name(node) {
    const {recording: r} = this.chart;
    if (node.frame < 0) return {name: node === this.root ? 'all' : 'no stack was recorded', place: ''};
    const {name, place} = r.frameText(node.frame);
    return {name, place: node.hasOneLine ? place : r.frames[node.frame][1]};
  }

  #amount(value) {
    return this.by === 'bytes' ? formatBytes(value) : plural(value, 'allocation');
  }

  draw() {
    if (this.root === undefined) return;
    this.graph.replaceChildren();
    // The callers that all stacks have in common are one row: they tell nothing apart.
    let top = this.focus;
    const trunk = [];
    const only = (node) => node.children.size === 1 ? [...node.children.values()][0] : null;
    for (let next = only(top); next !== null && next.value === top.value && next.children.size > 0;
         next = only(top))
      trunk.push(top = next);
    let depth = 0;
    const back = this.focus === this.root ? null : () => this.#goTo(this.root);
    const names = trunk.length === 0 ? this.#name(top).name :
                                       trunk.map((node) => shortName(this.#name(node).name)).join(' › ');
    this.#box({left: 0, width: 1, depth: depth++, node: top, text: names, onClick: back});
    this.deepest = 0;
    this.#children(top, 0, 1, depth);
    this.graph.style.height = `${(this.deepest + 1) * kFlameRow}px`;
    this.facts.textContent = `${this.#amount(this.focus.value)}` +
        (back === null ? '. A click on a call shows it alone.' :
                         ` of ${this.#amount(this.root.value)}. A click on the top row shows all.`);
  }

  #children(node, left, width, depth) {
    this.deepest = Math.max(this.deepest, depth - 1);
    const sorted = [...node.children.values()].sort((a, b) => b.value - a.value);
    for (const child of sorted) {
      const share = child.value / node.value * width;
      if (share < kLeastWidth) break;
      this.#box({
        left, width: share, depth, node: child, text: shortName(this.#name(child).name),
        onClick: () => this.#goTo(child)
      });
      this.#children(child, left, share, depth + 1);
      left += share;
    }
  }

  #goTo(node) {
    this.focus = node;
    this.draw();
  }

  #box({left, width, depth, node, text, onClick}) {
    const box = make(
        onClick ? 'button' : 'div', {class: 'call', 'data-value': node.value}, this.graph,
        width > 0.02 ? text : '');
    const {name, place} = this.#name(node);
    const share = formatShare(node.value / this.root.value);
    const lines = [name, ...(place === '' ? [] : [place]), `${this.#amount(node.value)}, ${share}`];
    box.setAttribute('aria-label', lines.join(', '));
    if (onClick) {
      box.type = 'button';
      box.addEventListener('click', onClick);
    }
    box.addEventListener('pointermove', (event) => showTip(event, lines));
    box.addEventListener('pointerleave', hideTip);
    box.style.left = `${100 * left}%`;
    box.style.width = `calc(${100 * width}% - 1px)`;
    box.style.top = `${depth * kFlameRow}px`;
    const file = place.replace(/:\d+$/, '');
    if (!this.files.has(file)) this.files.set(file, this.files.size % (kPalette.length - 1));
    box.style.backgroundColor =
        place === '' ? theme.empty : mixed(kPalette[this.files.get(file)], theme.background, 0.62);
  }
}
