// SPDX-License-Identifier: Apache-2.0
// The row of controls, the legend, and the list of what was found.

class Controls {
  // `page`: {colours, recordings, onFilter(filter), onText(text), onColours(), onStack(byAddress)}
  constructor(page) {
    this.page = page;
    const form = document.getElementById('controls');
    form.addEventListener('submit', (event) => event.preventDefault());
    this.colour = this.#select(
        'Colour', 'colour',
        [
          ...(page.colours.hasPurposes ? [['purpose', 'by use']] : []),
          ['stream', 'by stream'], ['pool', 'by graph pool'], ['size', 'by size'],
          ...(page.colours.hasStacks ? [['stack', 'by stack']] : [])
        ]);
    this.colour.value = page.colours.by;
    this.stack =
        this.#select('Stack', 'stack', [['age', 'oldest lowest'], ['address', 'by address']]);
    const {owners: streams, pools} = page.colours;
    this.stream = this.#select('Stream', 'stream', [
      ['any', 'all'], ...streams.map((id) => [`=${id}`, formatStream(id).replace('stream ', '')])
    ]);
    this.pool = this.#select(
        'Pool', 'pool', [['any', 'all'], ['=', 'none'], ...pools.map((id) => [`=${id}`, id])]);
    this.least =
        this.#input('From', 'least', '0 B', 'Show blocks of this size or more, such as 1 MiB');
    this.most =
        this.#input('to', 'most', 'any size', 'Show blocks of this size or less, such as 1 MiB');
    this.text = this.#input(
        'Find', 'find',
        page.recordings.some((r) => r.hasStacks) ? 'stack, 0x address or #block' :
                                                   '0x address or #block',
        'Find blocks by a text of their stack, an address within them, or their number');
    this.text.type = 'search';
    const reset = make('button', {type: 'button', id: 'reset'}, form, 'Reset');
    this.result = make('output', {
      id: 'result', for: 'find', role: 'status'
    }, form);
    this.#listen(reset);
    this.showLegend();
  }

  #field(label, id) {
    const field = make('label', {class: 'field', for: id}, document.getElementById('controls'));
      make('span', {}, field, label);
      return field;
  }

  #select(label, id, options) {
      const select = make('select', {id}, this.#field(label, id));
      for (const [value, text] of options) make('option', {value}, select, text);
      return select;
  }

  #input(label, id, placeholder, title) {
      return make(
          'input', {id, placeholder, title, autocomplete: 'off', spellcheck: 'false'},
          this.#field(label, id));
  }

  #listen(reset) {
      this.colour.addEventListener('change', () => this.#setColour());
      this.stack.addEventListener(
          'change', () => this.page.onStack(this.stack.value === 'address'));
      for (const each of [this.stream, this.pool, this.least, this.most]) {
        each.addEventListener('change', () => this.#filter());
      }
      let timer = 0;
      this.text.addEventListener('input', () => {
        clearTimeout(timer);
        timer = setTimeout(() => this.page.onText(this.text.value), 150);
      });
      reset.addEventListener('click', () => this.reset());
  }

  reset() {
      this.stream.value = this.pool.value = 'any';
      this.least.value = this.most.value = this.text.value = '';
      this.#filter();
      this.page.onText('');
  }

  nextColour() {
      this.colour.selectedIndex = (this.colour.selectedIndex + 1) % this.colour.length;
      this.#setColour();
  }

  #setColour() {
      this.page.colours.by = this.colour.value;
      this.showLegend();
      this.page.onColours();
  }

  #filter() {
      const id = (select) => select.value === 'any' ? null : select.value.slice(1);
      const bytes = (input) => {
        const parsed = input.value.trim() === '' ? null : parseBytes(input.value);
        const wrong = parsed === null && input.value.trim() !== '';
        input.setCustomValidity(wrong ? 'a size, such as 4096, 512 KiB or 1.5 GiB' : '');
        input.setAttribute('aria-invalid', wrong);
        if (wrong) input.reportValidity();
        return parsed;
      };
      this.page.onFilter({
        stream: id(this.stream),
        pool: id(this.pool),
        least: bytes(this.least),
        most: bytes(this.most)
      });
  }

  showLegend() {
      const legend = document.getElementById('legend');
      legend.replaceChildren();
      const kMost = 24;
      const entries = this.page.colours.legend();
      for (const [name, colour] of entries.slice(0, kMost))
        this.#entry(legend, name, colour, 'box');
      if (entries.length > kMost)
        make('span', {class: 'entry'}, legend, `and ${formatCount(entries.length - kMost)} more`);
      const isWeirs = this.page.recordings.some((r) => r.origin.pytorchs);
      this.#entry(legend, isWeirs ? 'Weir would hold' : 'reserved', 'var(--reserved)', 'line');
      const all = Object.values(this.page.filter).every((value) => value === null);
      if (all)
        this.#entry(legend, 'live', 'var(--liveLine)', 'line');
      else
        this.#entry(legend, 'live in all', 'var(--soft)', 'line');
      if (this.page.recordings.some((r) => r.otherPeakReserved > 0))
        this.#entry(legend, 'reserved by PyTorch', 'var(--other)', 'dots');
      this.#entry(legend, 'chosen', 'var(--chosen)', 'box');
  }

  #entry(legend, name, colour, shape) {
      const entry = make('span', {class: 'entry'}, legend);
      make('i', {class: shape, 'aria-hidden': 'true'}, entry).style.background = colour;
      entry.append(name);
  }
  }

  // The blocks that were found: the largest of them, as buttons.
  class Found {
    constructor(element, onFollow) {
      this.element = element;
      this.onFollow = onFollow;
    }

    // `charts`, each with its `found`.
    show(charts, text) {
      this.element.replaceChildren();
      const kMost = 12;
      let count = 0;
      let bytes = 0;
      for (const chart of charts) {
        const {recording: r, selection} = chart;
        const blocks = [];
        chart.found?.forEach((is, block) => {
          if (is === 1 && (selection.matches === null || selection.matches[block] === 1))
            blocks.push(block);
        });
        chart.foundBlocks = blocks;
        if (chart.found === null) continue;
        count += blocks.length;
        bytes = Math.max(bytes, d3.max(blocks, (b) => r.bytes[b]) ?? 0);
        make('h2', {}, this.element, charts.length > 1 ? `Found in ${r.source}` : 'Found');
        if (blocks.length === 0)
          make('p', {class: 'hint'}, this.element, 'No block that is shown.');
        const list = make('ul', {class: 'found'}, this.element);
        for (const block of blocks.slice()
                 .sort((a, b) => r.bytes[b] - r.bytes[a])
                 .slice(0, kMost)) {
          const button = make(
              'button', {type: 'button', class: 'link'}, make('li', {}, list),
              `block ${formatCount(block)}: ${formatBytes(r.bytes[block])}, ${
                  formatTime(r.begin[block])}`);
          button.addEventListener('click', () => this.onFollow(chart, block));
        }
        if (blocks.length > kMost)
          make(
              'p', {class: 'hint'}, this.element,
              `The largest ${kMost} of ${
                  formatCount(blocks.length)}. n and p go through all, in order of time.`);
      }
      document.getElementById('result').textContent = text.trim() === '' ? '' :
          count === 0                                                    ? 'nothing found' :
                        `${plural(count, 'block')}, up to ${formatBytes(bytes)}`;
    }
  }
