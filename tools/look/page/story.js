// SPDX-License-Identifier: Apache-2.0
// A block's story: who allocated it, who used it, who had its memory before and afterwards.

class Story {
  constructor(element, onFollow) {
    this.element = element;
    this.onFollow = onFollow;
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    make('h2', {}, this.element, 'Block');
    make(
        'p', {class: 'hint'}, this.element,
        'Click on a block, or press j or k, for its story: who allocated it, which streams used it, ' +
            'and who had its memory next.');
  }

  show(chart, block) {
    const {recording: r} = chart;
    this.element.replaceChildren();
    make('h2', {}, this.element, `Block ${formatCount(block)}`);
    make(
        'p', {class: 'lead'}, this.element,
        `${formatBytes(r.bytes[block])} on ${describeHeap(r, r.heap[block])}`);
    const list = make('dl', {}, this.element);
    this.list = list;
    this.#fact('Size', this.#size(r, block));
    this.#fact('Address', formatAddress(r.addressOf(block)));
    this.#fact(
        'Allocated',
        r.wasLiveAtBegin(block) ? 'before the recording began' : formatTime(r.begin[block]));
    this.#stack(r, block);
    this.#fences(r, block);
    this.#fact('Freed', r.isLiveAtEnd(block) ? 'not in this recording' : formatTime(r.end[block]));
    if (!r.isLiveAtEnd(block))
      this.#fact(
          'Lived',
          `${r.wasLiveAtBegin(block) ? 'at least ' : ''}${
              formatDuration(r.end[block] - r.begin[block])}`);
    this.#reuse(chart, block);
    this.#before(chart, block);
  }

  #size(r, block) {
    const exact = `${formatCount(r.bytes[block])} B`;
    return r.slack[block] === 0 ?
        exact :
        `${exact}; ${formatCount(r.bytes[block] - r.slack[block])} B were asked for`;
  }

  #fact(name, text) {
    make('dt', {}, this.list, name);
    return make('dd', {}, this.list, text);
  }

  #stack(r, block) {
    const frames = r.frameTexts(r.wholeStacks[r.wholeStack[block]]);
    if (frames.length === 0) return this.#fact('By', 'unknown: no stack was recorded');
    const list = make('ol', {class: 'stack'}, this.#fact('By', ''));
    for (const {name, place} of frames) {
      const item = make('li', {}, list);
      make('span', {class: 'function'}, item, name);
      if (place !== '') make('span', {class: 'place'}, item, place);
    }
  }

  #fences(r, block) {
    const from = r.firstFence[block];
    const to = r.firstFence[block + 1];
    if (from === to) return this.#fact('Fenced', 'by no other stream');
    const list = make('ul', {}, this.#fact('Fenced', ''));
    const kMost = 20;
    for (let i = from; i < Math.min(to, from + kMost); ++i) {
      make(
          'li', {}, list,
          `by ${r.streamName(r.fenceStream[i])} at ` +
              formatTime(r.begin[block] + r.fenceAfter[i]));
    }
    if (to - from > kMost) make('li', {}, list, `and ${plural(to - from - kMost, 'time')} more`);
  }

  #reuse(chart, block) {
    const {recording: r} = chart;
    const next = r.reusedBy[block];
    if (r.isLiveAtEnd(block)) return;
    if (next < 0) return this.#fact('Reused', 'its memory served no block afterwards');
    const after = formatDuration(Math.max(0, r.begin[next] - r.end[block]));
    const entry = this.#fact('Reused', `${after} later, by `);
    this.#link(chart, next, entry);
    make(
        'span', {}, entry,
        r.wasWaitedFor(block) ? '; its stream waits, on the GPU, for the last use of this block' :
                                '; nothing had to wait for that');
  }

  // Whose memory this block got.
  #before(chart, block) {
    const donors = chart.donors(block);
    if (donors.length === 0) return;
    const entry = this.#fact('Memory of', '');
    const list = make('ul', {}, entry);
    const kMost = 8;
    for (const donor of donors.slice(0, kMost)) {
      const item = make('li', {}, list);
      this.#link(chart, donor, item);
      if (chart.recording.wasWaitedFor(donor)) make('span', {}, item, ', waited for');
    }
    if (donors.length > kMost)
      make('li', {}, list, `and ${plural(donors.length - kMost, 'other block')}`);
  }

  #link(chart, block, parent) {
    const {recording: r} = chart;
    const button = make(
        'button', {class: 'link', type: 'button', 'data-block': block}, parent,
        `block ${formatCount(block)} (${formatBytes(r.bytes[block])}, ${
            r.streamName(r.stream[block])})`);
    button.addEventListener('click', () => this.onFollow(chart, block));
  }
}
