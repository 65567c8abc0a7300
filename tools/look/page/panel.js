// SPDX-License-Identifier: Apache-2.0
// "At the peak: 4.74 GiB in 136 blocks": what made the chosen moment what it is, in words and bars.

const kRows = 6;       // of the largest blocks or stacks; two recordings side by side have fewer
const kRowsOfTwo = 4;
const kAdvice = 2;
const kShortRows = 4;  // of streams, pools
const kNamedStacks = 3;  // in the answer
const kCallsInPath = 5;

class MomentPanel {
  constructor(parent, chart) {
    this.chart = chart;
    this.by = chart.recording.hasStacks ? 'stack' : 'block';
    this.element = make('section', {class: 'moment', 'aria-label': 'What made the peak'}, parent);
    chart.makeHead(this.element);
    const card = make('div', {class: 'card'}, this.element);
    const title = make('div', {class: 'title'}, card);
    this.title = make('h2', {}, title);
    this.back = make('button', {type: 'button', class: 'back', hidden: ''}, title, 'Back to the peak (z)');
    this.back.addEventListener('click', () => chart.fitPeak());
    const {verdict: [first, , help, ...rest], failure, advice} = chart.recording.origin;
    if (failure !== undefined) make('p', {class: 'answer failure'}, card, first);
    this.lead = make('p', {class: 'answer'}, card);
    for (const text of [help, ...advice].slice(0, kAdvice)) make('p', {class: 'advice'}, card, text);
    make('p', {class: 'verdict'}, card, rest.join(' '));
    // Beside the chart, unless there are two.
    const columns = make(
        'div', {class: 'columns', 'data-chart': chart.number}, chart.page.recordings.length > 1 ? card : document.getElementById('tables'));
    this.uses = make('div', {class: 'uses'}, columns);
    this.uses.hidden = !chart.recording.hasPurposes;
    this.largest = make('div', {class: 'largest'}, columns);
    this.shares = make('div', {class: 'shares'}, columns);
    this.held = make('div', {class: 'held'}, columns);
  }

  // `pages`: those of the moment.
  show(moment, pages) {
    const {recording: r, all} = this.chart;
    this.moment = moment;
    this.figures = figuresAt(all, moment.step, pages);
    const {live, blocks} = this.figures;
    const atPeak = moment.step === all.peak();
    this.back.hidden = atPeak || r.isMoment;
    const when = r.isMoment                         ? 'In this snapshot' :
        moment.step === r.origin.failure?.step ? 'When the request failed' :
        atPeak                                 ? (r.showsPeak ? 'At the peak' : 'At the beginning') :
                                                 `At ${r.roughTime(moment.time)}`;
    this.title.textContent = `${when}: ${formatBytes(live)} in ${plural(blocks.length, 'block')}`;
    this.#tellWhy();
    this.draw();
  }

  // The rows, in the colours that are chosen.
  draw() {
    if (this.figures === undefined) return;
    this.#drawLargest();
    this.#drawShares();
    this.#drawHeld();
  }

  #tellWhy() {
    const {recording: r} = this.chart;
    const {blocks, live, came, gone} = this.figures;
    const parts = [this.#mostOfIt()];
    if (this.hasTrough) {
      const went = gone.bytes < came.bytes / 100 ? '' : `, while ${formatBytes(gone.bytes)} was freed`;
      parts.push(`${formatBytes(came.bytes)} ${this.#sinceTheDip()}${went}.`);
    }
    this.lead.textContent = blocks.length === 0 || live === 0 ? 'Nothing was live.' : parts.join(' ');
  }

  // Whether some of it was there before, so that old and new can be told apart.
  get hasTrough() {
    const {recording: r} = this.chart;
    return !r.isMoment && this.figures.came.count > 0 && this.figures.trough >= r.initialSteps;
  }

  // "came after memory last dipped, to 65.9 GiB at 1.252 s"
  #sinceTheDip() {
    const {all, recording: r} = this.chart;
    const {trough} = this.figures;
    return `came after memory last dipped, to ${formatBytes(all.liveAfter(trough))} at ${
        r.roughTime(r.stepTime[trough])}`;
  }

  // How few blocks, or which stack, are half of what is live.
  #mostOfIt() {
    const {recording: r} = this.chart;
    const {blocks, live, byStack} = this.figures;
    if (live === 0) return '';
    if (r.isMoment && r.origin.pytorchs) return r.origin.verdict[1];
    const known = (byStack ?? []).filter(({key}) => key !== 0);
    if (known.length > 0 && d3.sum(known, (group) => group.bytes) >= live / 2)
      return this.#mostOfStacks(known, live);
    const largest = blocks.slice().sort((a, b) => r.bytes[b] - r.bytes[a]);
    let sum = 0;
    let count = 0;
    while (sum < live / 2) sum += r.bytes[largest[count++]];
    // One more that is nearly as large belongs to them.
    while (count < blocks.length && r.bytes[largest[count]] >= 0.9 * r.bytes[largest[count - 1]])
      sum += r.bytes[largest[count++]];
    const streams = new Set(largest.slice(0, count).map((b) => r.stream[b]));
    const where = this.chart.colours.owners.length < 2 || streams.size > 1 ?
        '' : ` on ${r.streamName([...streams][0])}`;
    const [most, least] = [largest[0], largest[count - 1]].map((b) => r.bytes[b]);
    const size = most === least     ? ` of ${formatBytes(most)}` :
        most - least <= 0.1 * most ? ` of about ${formatBytes(sum / count)}` : ` of ${formatBytes(least)} or more`;
    const which = `${count === 1 ? 'One block' : `${formatCount(count)} blocks`}${size}${where}`;
    return `${which} ${count === 1 ? 'is' : 'are'} ${
        count === blocks.length ? 'all' : formatShare(sum / live)} of it.`;
  }

  // One stack that is half of it, with its callers; else the few that are half; else the function that
  // half was allocated under.
  #mostOfStacks(groups, live) {
    const {recording: r} = this.chart;
    const before = groups.filter(({key}) => r.isFromBefore(key));
    if (before.length > 0) return this.#mostFromBefore(before, groups, live);
    const [first] = groups;
    if (first.bytes >= live / 2) {
      const {blocks} = first;
      const size = r.bytes[blocks[0]];
      const sizes = blocks.every((b) => r.bytes[b] === size) ? ` of ${formatBytes(size)}` : '';
      return `${this.#path(first.key)} allocated ${formatShare(first.bytes / live)} of it: ${
          plural(blocks.length, 'block')}${sizes}.${this.#byLine([first], groups, live)}`;
    }
    const top = [];
    let bytes = 0;
    for (const group of groups.slice(0, kNamedStacks)) {
      if (bytes >= live / 2) break;
      top.push(group);
      bytes += group.bytes;
    }
    const names = stackLabels(top.map(({key}) => callsOf(r, key)));
    const hot = bytes < live / 2 ? hotFunction(r, groups, live) : null;
    if (hot !== null) {
      const [most] = hot.groups;
      return `${formatShare(hot.bytes / live)} of it was allocated under ${hot.name}; the most, ${
          formatShare(most.bytes / live)}, in ${callText(callsOf(r, most.key)[0])}.`;
    }
    const last = names.pop();
    return `${formatShare(bytes / live)} of it was allocated in ${
        names.length === 0 ? '' : `${names.join(', ')} and `}${last}.${this.#byLine(top, groups, live)}`;
  }

  // The code that allocated most, where none of `named` has a line of the program's.
  #byLine(named, groups, live) {
    const {recording: r} = this.chart;
    const most = groups.find(({key, bytes}) => r.hasLine(key) && bytes >= live / 100);
    if (most === undefined || named.some(({key}) => r.hasLine(key))) return '';
    return ` By a line of the program: ${formatShare(most.bytes / live)}, in ${callText(callsOf(r, most.key)[0])}.`;
  }

  // What has no code of the recording's, and of the rest the code that allocated most.
  #mostFromBefore(before, groups, live) {
    const {recording: r} = this.chart;
    const parts = before.map(
        ({key, bytes}) => `${formatShare(bytes / live)} of it was ${r.frames[r.stacks[key][0]][0]}.`);
    const most = groups.find(({key}) => !r.isFromBefore(key));
    if (most !== undefined)
      parts.push(`The largest part of the rest, ${formatShare(most.bytes / live)}, was allocated in ${
          callText(callsOf(r, most.key)[0])}.${this.#byLine([most], groups, live)}`);
    return parts.join(' ');
  }

  // "evaluate › Model.forward › linear (functional.py:4)": without the callers of all stacks.
  #path(stack) {
    const [innermost, ...callers] = this.#calls(stack);
    const names = [...callers.map(({name}) => name).reverse(), callText(innermost)];
    if (names.length > kCallsInPath) names.splice(2, names.length - kCallsInPath + 1, '…');
    return names.join(' › ');
  }

  // Innermost first, without the callers of all stacks.
  #calls(stack) {
    const {recording: r} = this.chart;
    const {figures} = this;
    figures.common ??= commonCallers(
        r, figures.byStack.map(({key}) => key).filter((key) => r.stacks[key].length > 0));
    return callsOf(r, stack, figures.common);
  }

  #drawLargest() {
    const {recording: r} = this.chart;
    const {byStack, byBlock, live, trough} = this.figures;
    this.largest.replaceChildren();
    const head = make('div', {class: 'subhead'}, this.largest);
    make('h3', {}, head, this.by === 'stack' ? 'Allocated by' : 'Largest blocks');
    if (byStack !== null) {
      const other = this.by === 'stack' ? 'block' : 'stack';
      const swap = make(
          'button', {type: 'button', class: 'link', id: `by-${other}`}, head,
          other === 'stack' ? 'by stack' : 'by block');
      swap.addEventListener('click', () => {
        this.by = other;
        this.#drawLargest();
      });
    }
    const groups = this.by === 'stack' ? byStack : byBlock;
    const rows = this.chart.page.recordings.length > 1 ? kRowsOfTwo : kRows;
    const shown = groups.length > rows + 1 ? groups.slice(0, rows) : groups;
    const list = make('ul', {class: this.by === 'stack' ? 'rows counted' : 'rows'}, this.largest);
    for (const group of shown) {
      const [name, detail] = this.by === 'stack' ? this.#stackNames(group) : this.#blockNames(group);
      this.#row(list, {
        ...group, name, detail, total: live,
        count: this.by === 'stack' ? plural(group.blocks.length, 'block') : null,
        colour: this.chart.colours.colourOf(r, group.blocks[0]),
        onClick: () => this.chart.page.mark(this.chart, group.blocks)
      });
    }
    this.#others(list, groups.slice(shown.length), live);
    if (this.hasTrough) {
      const note = make('p', {class: 'hint'}, this.largest);
      make('i', {'aria-hidden': 'true'}, note);
      note.append(` ${this.#sinceTheDip()} `);
      make('i', {class: 'old', 'aria-hidden': 'true'}, note);
      note.append(' older');
    }
  }

  #blockNames({blocks}) {
    const {recording: r} = this.chart;
    const {byPool} = this.figures;
    const size = formatBytes(r.bytes[blocks[0]]);
    const heap = this.chart.colours.owners.length < 2 && byPool.length < 2 ? '' : describeHeap(r, r.heap[blocks[0]]);
    const life = r.isMoment ? '' :
                              `${blocks.length > 1 ? 'first at' : 'since'} ${r.roughTime(r.begin[blocks[0]])}`;
    return [
      blocks.length > 1 ? `${formatCount(blocks.length)} × ${size}` : size,
      [heap, r.wasLiveAtBegin(blocks[0]) ? 'there from the beginning' : life]
          .filter((t) => t !== '').join(', ')
    ];
  }

  #stackNames({key}) {
    if (this.chart.recording.stacks[key].length === 0) return ['unknown', 'no stack was recorded'];
    const [first, ...calls] = this.#calls(key);
    const callers = calls.map(({name}) => name);
    if (callers.length > 2) callers.splice(1, callers.length - 2, '…');
    // Where there is no room for both, each keeps its beginning.
    const [near, ...far] = callers.map((name) => `‹ ${name}`);
    return [callText(first), near === undefined ? '' : [near, far.length === 0 ? '' : ` ${far.join(' ')}`]];
  }

  #drawShares() {
    const {recording: r, colours} = this.chart;
    const {byPurpose, byStream, byPool, bySize, live} = this.figures;
    this.shares.replaceChildren();
    this.uses.replaceChildren();
    const list = (title, groups, name, colour, parent = this.shares) => {
      make('h3', {}, parent, title);
      const rows = make('ul', {class: 'rows short'}, parent);
      const shown = groups.length > kShortRows + 1 ? groups.slice(0, kShortRows) : groups;
      for (const group of shown) {
        this.#row(rows, {
          ...group, name: name(group.key), detail: plural(group.blocks.length, 'block'),
          total: live, colour: colour(group.key),
          onClick: () => this.chart.page.mark(this.chart, group.blocks)
        });
      }
      this.#others(rows, groups.slice(shown.length), live);
    };
    if (byPurpose !== null) list('Used for', byPurpose, (name) => name, purposeColour, this.uses);
    if (colours.owners.length > 1) {
      list('By stream', byStream, (s) => r.streamName(s), (s) => colours.streamColour(r.streams[s]));
    } else {
      list('By size', bySize, (i) => kSizes[i][0], sizeColour);
    }
    const pooled = byPool.some(({key}) => key !== 0);
    if (pooled) {
      list(
          'By graph pool', byPool, (p) => r.poolName(p),
          (p) => colours.poolColour(p === 0 ? null : r.pools[p - 1]));
    }
    const only = [
      ...(colours.owners.length > 1 ? [] : byStream.map(({key}) => `on ${r.streamName(key)}`)),
      ...(pooled ? [] : ['in no graph pool'])
    ];
    if (only.length > 0 && live > 0) make('p', {class: 'hint'}, this.shares, `All ${only.join(', ')}.`);
  }

  #drawHeld() {
    const {recording: r} = this.chart;
    const {causes, reserved, live} = this.figures;
    this.held.replaceChildren();
    if (r.origin.held !== undefined) return this.#drawPytorchs();
    const idle = d3.sum(Object.values(causes));
    make('h3', {}, this.held, 'Reserved, but not asked for');
    make(
        'p', {class: 'hint'}, this.held,
        reserved === 0 ? 'No page is in the recording.' :
                         `${formatBytes(idle)} of ${formatBytes(reserved)} reserved (${
                             formatShare(idle / reserved)})`);
    this.#drawCauses(
        kCauses.map(([key, detail]) => ({key, detail, bytes: causes[key]})).filter(({bytes}) => bytes > 0),
        reserved, 'var(--idle)');
    if (r.otherPeakReserved > 0) {
      const times = live > 0 && this.moment.step === this.chart.all.peak() ?
          `, ${(r.otherPeakReserved / live).toFixed(2)} × this peak` : '';
      make('p', {class: 'other'}, this.held,
           `For comparison: PyTorch's own allocator reserved up to ${formatBytes(r.otherPeakReserved)} ` +
               `for this program${times}.`);
    }
  }

  // What the allocator that ran held for nothing; and Weir.
  #drawPytorchs() {
    const {origin: {held, failure}} = this.chart.recording;
    const {reserved, causes} = this.figures;
    make('h3', {}, this.held, `PyTorch held without a block ${
        failure !== undefined          ? 'then' :
        this.chart.recording.showsPeak ? 'at its peak' :
                                         'at this moment'}`);
    const idle = held.reserved - held.live;
    make('p', {class: 'hint'}, this.held,
         `${formatBytes(idle)} of ${formatBytes(held.reserved)} reserved (${formatShare(idle / held.reserved)}), ` +
             `in pieces of at most ${formatBytes(held.largest)}`);
    this.#drawCauses(
        held.causes.map(([key, detail, bytes]) => ({key, detail, bytes}))
            .filter(({bytes}) => bytes >= held.reserved / 100),
        held.reserved, 'var(--other)');
    make('p', {class: 'other'}, this.held,
         `Weir would hold ${formatBytes(reserved)} at this moment, ${
             formatBytes(d3.sum(Object.values(causes)))} of it unused. weir fit FILE tries PyTorch's settings.`);
  }

  // The longest bar is as long as the list is wide.
  #drawCauses(rows, total, colour) {
    const list = make('ul', {class: 'rows causes'}, this.held);
    const most = Math.max(1, d3.max(rows, ({bytes}) => bytes) ?? 0);
    for (const row of rows)
      this.#row(list, {...row, name: row.key.replaceAll('_', ' '), most, total, colour, onlyOne: true});
  }

  #others(list, groups, total) {
    if (groups.length === 0) return;
    const bytes = d3.sum(groups, (g) => g.bytes);
    const count = d3.sum(groups, (g) => g.blocks.length);
    this.#row(list, {
      name: 'others', detail: plural(count, 'block'), bytes, fresh: d3.sum(groups, (g) => g.fresh),
      total, colour: 'var(--faint)'
    });
  }

  // A bar is as long as its share of `total`, or of `most`.
  #row(list, {
    name, detail, count = null, bytes, fresh, total, most = total, colour, onClick, key, onlyOne = false
  }) {
    const item = make('li', key === undefined ? {} : {'data-key': key}, list);
    item.dataset.bytes = bytes;
    const row = make(onClick ? 'button' : 'div', {class: 'row'}, item);
    if (onClick) {
      row.type = 'button';
      row.addEventListener('click', onClick);
    }
    const details = Array.isArray(detail) ? detail : [detail];
    const facts = [details.join(''), count, `${formatCount(bytes)} B`].filter((t) => t !== null && t !== '');
    row.title = `${name}: ${facts.join('; ')}`;
    make('span', {class: 'name'}, row, name);
    make('span', {class: 'amount'}, row, formatBytes(bytes));
    make('span', {class: 'share'}, row, formatShare(bytes / total));
    const place = make('span', {class: 'detail'}, row, details.length === 1 ? details[0] : '');
    if (details.length > 1) details.forEach((text) => make('span', {}, place, text));
    if (count !== null) make('span', {class: 'count'}, row, count);
    const bar = make('span', {class: 'bar', 'aria-hidden': 'true'}, row);
    const part = (share, kind) => {
      if (share <= 0) return;
      const piece = make('i', {class: kind}, bar);
      piece.style.width = `${100 * share}%`;
      piece.style.backgroundColor = colour;
    };
    const old = onlyOne || !this.hasTrough ? 0 : bytes - fresh;
    part(old / most, 'old');
    part((bytes - old) / most, 'new');
  }
}
