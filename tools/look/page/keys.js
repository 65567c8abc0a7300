// SPDX-License-Identifier: Apache-2.0
// The keyboard. Keys that a control uses itself are left to it.

const kKeys = [
  ['←  →', 'earlier, later'],
  ['↑  ↓', 'up, down (where bytes are zoomed)'],
  ['+  −', 'zoom time in, out'],
  [']  [', 'zoom bytes in, out'],
  ['z', 'show the peak, and choose its moment'],
  ['0', 'show the whole recording'],
  ['k  j', 'choose the next block above, below, at the chosen moment'],
  ['.  ,', 'move the chosen moment to the next, previous change'],
  ['Enter', 'go to the chosen block'],
  ['/', 'find'],
  ['n  p', 'next, previous block found'],
  ['c', 'colour by stream, pool, size, stack'],
  ['d', 'dark or light'],
  ['Tab', 'to the controls, charts, maps of pages, links'],
  ['Esc', 'leave a field; let go of what is chosen'],
  ['?', 'this list'],
];
const kMouse = [
  ['drag', 'move'],
  ['wheel, pinch', 'zoom time'],
  ['Shift + wheel', 'zoom bytes'],
  ['click', 'choose a block and a moment'],
  ['double click', 'show the whole recording'],
  ['drag below the chart', 'choose the part that is shown'],
];

function fillHelp(dialog) {
  const add = (title, rows) => {
    make('h3', {}, dialog, title);
    const list = make('dl', {class: 'keys'}, dialog);
    for (const [keys, what] of rows) {
      make('dt', {}, list, keys);
      make('dd', {}, list, what);
    }
  };
  make('h2', {}, dialog, 'Keys and pointer');
  add('Keys', kKeys);
  add('Pointer', kMouse);
  const about = make('details', {}, dialog);
  make('summary', {}, about, `Drawn with D3 ${d3.version}`);
  make('pre', {}, about, document.getElementById('licence').textContent);
  const close = make('button', {type: 'button', autofocus: ''}, dialog, 'Close');
  close.addEventListener('click', () => dialog.close());
}

// `actions`: by key.
function listenToKeys(actions) {
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.getElementById('help').open) return;
    const inField = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (inField) {
      if (event.key !== 'Escape') return;
      event.target.blur();
      event.preventDefault();
      return;
    }
    if (event.key === 'Enter' && event.target.tagName === 'BUTTON') return;
    const action = actions[event.key];
    if (action === undefined) return;
    event.preventDefault();
    action();
  });
}
