// SPDX-License-Identifier: Apache-2.0
// Puts the page together.

const kHeadroom = 1.12;  // above the highest line, for the name of the peak

class Page {
  constructor(recordings) {
    this.recordings = recordings;
    this.frames = [];  // how long each took to draw, in ms; for tests
    this.colours = new Colours(recordings);
    const most = d3.max(recordings, (r) => Math.max(d3.max(r.reservedBytes) ?? 0, r.peakLive));
    const other = d3.max(recordings, (r) => r.otherPeakReserved);
    // Where there is room for it, or it is what ran, PyTorch's line is in view; else one must zoom out.
    const ran = recordings.some(({origin}) => origin.held !== undefined);
    const usual = Math.max(most, ran || other <= 1.5 * most ? other : 0) * kHeadroom;
    this.view = new View(d3.max(recordings, (r) => r.duration), usual, other * kHeadroom);
    this.panels = document.getElementById('panels');
    this.filter = {stream: null, pool: null, least: null, most: null};
    this.text = '';
    this.byAddress = false;
    this.story =
        new Story(document.getElementById('story'), (chart, block) => this.follow(chart, block));
    this.found =
        new Found(document.getElementById('found'), (chart, block) => this.follow(chart, block));
    const charts = document.getElementById('charts');
    this.charts = recordings.map((r, i) => new Chart(charts, r, this, i));
    this.active = this.charts[0];
    this.controls = new Controls(this);
    this.charts.forEach((chart) => this.#watch(chart));
    this.#select();
    this.charts.forEach((chart) => {
      chart.setMoment(chart.recording.origin.failure?.step ?? chart.selection.peak());
      chart.segments?.show();
    });
    listenToKeys(this.#actions());
  }

  #watch(chart) {
    const takeOver = () => {
      this.active = chart;
    };
    chart.element.addEventListener('pointerdown', takeOver);
    chart.element.addEventListener('focusin', takeOver);
    new ResizeObserver(() => {
      if (chart.seenWidth === chart.element.clientWidth) return;
      chart.seenWidth = chart.element.clientWidth;
      chart.resize();
    }).observe(chart.element);
  }

  // Which blocks are shown has changed.
  #select() {
    for (const chart of this.charts) {
      const {recording} = chart;
      chart.all ??= new Selection(recording, null, false);
      const matches = matchesOf(recording, this.filter);
      chart.setSelection(
          matches === null && !this.byAddress ? chart.all :
                                                new Selection(recording, matches, this.byAddress));
    }
    this.onText(this.text);
    this.charts.forEach((chart) => chart.width && chart.redraw());
  }

  onFilter(filter) {
    this.filter = filter;
    this.controls.showLegend();
    this.#select();
  }
  onStack(byAddress) {
    this.byAddress = byAddress;
    this.#select();
  }
  onColours() {
    this.charts.forEach((chart) => {
      chart.setColours(chart.found);
      chart.map.draw();
      chart.segments?.draw();
    });
  }
  onText(text) {
    this.text = text;
    this.charts.forEach((chart) => chart.setColours(foundOf(chart.recording, text)));
    this.found.show(this.charts, text);
  }

  onChoose(chart, block) {
    this.active = chart;
    this.charts.forEach((each) => each.choose(each === chart ? block : -1));
    if (block < 0)
      this.story.clear();
    else
      this.story.show(chart, block);
  }

  // A link to a block.
  follow(chart, block) {
    this.onChoose(chart, block);
    chart.goTo(block);
  }

  // Shows where these blocks are: all others get faint.
  mark(chart, blocks) {
    this.active = chart;
    for (const each of this.charts) {
      const found = each === chart ? new Uint8Array(each.recording.count) : null;
      for (const block of each === chart ? blocks : []) found[block] = 1;
      each.setColours(found);
    }
    this.found.show(this.charts, 'marked');
  }

  #neighbour(by) {
    const block = this.active.neighbour(by);
    if (block >= 0) this.onChoose(this.active, block);
  }

  // To the next (1) or previous (-1) change of what is shown.
  #step(by) {
    const {selection, moment} = this.active;
    const step = selection.fromRecording(moment.step) + by;
    if (step < 0 || step >= selection.step.length) return;
    this.active.setMoment(selection.toRecording(step));
    this.view.show(selection.time[step], selection.time[step]);
  }

  #nextFound(by) {
    const {foundBlocks: blocks = [], block} = this.active;
    if (blocks.length === 0) return;
    const after = d3.bisectRight(blocks, block);
    const next = by > 0 ? after : (block === blocks[after - 1] ? after - 2 : after - 1);
    this.follow(this.active, blocks[(next + blocks.length) % blocks.length]);
  }

  // `theme`: dark or light.
  dress(theme) {
    document.documentElement.dataset.theme = theme;
    this.restyle();
  }
  toggleTheme() {
    this.dress(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  }

  restyle() {
    readTheme();
    this.onColours();
    this.charts.forEach((chart) => chart.redraw());
  }

  #actions() {
    const {view} = this;
    const help = document.getElementById('help');
    // The chosen moment stays in view.
    const zoom = (factor) =>
        view.zoomTime(factor, view.anchor(this.active.moment?.time ?? -1));
    return {
      'ArrowLeft': () => view.pan(-0.15),
      'ArrowRight': () => view.pan(0.15),
      'ArrowUp': () => view.rise(0.15),
      'ArrowDown': () => view.rise(-0.15),
      '+': () => zoom(1 / 1.5),
      '=': () => zoom(1 / 1.5),
      '-': () => zoom(1.5),
      ']': () => view.zoomBytes(1 / 1.5),
      '[': () => view.zoomBytes(1.5),
      'z': () => this.active.fitPeak(),
      '0': () => view.showAll(),
      'Home': () => view.showAll(),
      'k': () => this.#neighbour(1),
      'j': () => this.#neighbour(-1),
      '.': () => this.#step(1),
      ',': () => this.#step(-1),
      'Enter': () => this.active.block >= 0 && this.active.goTo(this.active.block),
      '/': () => document.getElementById('find').focus(),
      'n': () => this.#nextFound(1),
      'p': () => this.#nextFound(-1),
      'c': () => this.controls.nextColour(),
      'd': () => this.toggleTheme(),
      'Escape': () => {
        this.onChoose(this.active, -1);
        this.onText(this.text);  // lets go of marked blocks, too
      },
      '?': () => help.showModal(),
    };
  }
}

// An empty page takes a file; the first that can be read is shown.
function offer() {
  const loading = document.getElementById('loading');
  loading.textContent = 'Drop a memory snapshot of PyTorch\'s (pickle or JSON) or a trace here, or choose one: ';
  const input = make('input', {type: 'file', 'aria-label': 'A file'}, loading);
  make('p', {class: 'hint'}, loading, 'It is read in this browser, and sent nowhere.');
  const problem = make('p', {role: 'alert'}, loading);
  const remedy = make('p', {class: 'hint'}, loading);
  const take = async (file) => {
    if (file === undefined || !loading.isConnected) return;
    problem.textContent = `Reading ${file.name}`;
    remedy.textContent = '';
    try {
      show([await readDropped(file)]);
    } catch (error) {
      problem.textContent = `${file.name}: ${error.message}`;
      remedy.textContent = `torch.cuda.memory._dump_snapshot() writes what can be read here; weir look ${
          file.name} reads recordings, logs and larger files.`;
    }
  };
  input.addEventListener('change', () => take(input.files[0]));
  document.addEventListener('dragover', (event) => event.preventDefault());
  document.addEventListener('drop', (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
}

async function start() {
  const texts = [...document.querySelectorAll('script.recording')];
  if (texts.length === 0) return offer();
  const recordings = [];
  for (const text of texts) {
    recordings.push(await Recording.read(text.textContent));
    text.remove();
  }
  show(recordings);
}

function show(recordings) {
  if (recordings.length > 1 && recordings[0].source === recordings[1].source)
    recordings.forEach((r, i) => r.source += ` (${i + 1})`);  // of different folders
  if (recordings.some((r) => !r.origin.has_times)) countEvents();
  const names = recordings.map((r) => r.source || 'a recording');
  const ranOut = recordings.some(({origin}) => origin.failure !== undefined);
  document.title = `${ranOut ? 'Out of memory:' : 'Memory of'} ${names.join(' and ')}`;
  readTheme();
  document.body.classList.toggle('two', recordings.length > 1);
  const page = new Page(recordings);
  globalThis.weirPage = page;  // for tests
  const help = document.getElementById('help');
  fillHelp(help);
  document.getElementById('show-help').addEventListener('click', () => help.showModal());
  document.getElementById('theme').addEventListener('click', () => page.toggleTheme());
  window.matchMedia('(prefers-color-scheme: dark)')
      .addEventListener('change', ({matches}) => page.dress(matches ? 'dark' : 'light'));
  document.getElementById('loading').remove();
}

start().catch((error) => {
  const loading = document.getElementById('loading');
  if (loading)
    loading.textContent = typeof DecompressionStream === 'undefined' ?
        'This browser is too old for the page: it needs Chrome or Edge 87, Firefox 113 or Safari 16.4.' :
        `The page could not be shown: ${error.message}`;
  throw error;
});
