// SPDX-License-Identifier: Apache-2.0
// The page's elements. Texts are only ever set as texts, so that no name in a recording is markup.

function make(tag, attributes = {}, parent = null, text = null) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  if (parent !== null) parent.append(element);
  return element;
}

// A canvas of this size in CSS pixels, empty, whose context counts in them.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// The note beside the pointer: the first line is its heading.
function showTip(event, lines) {
  const tip = document.getElementById('tip');
  tip.replaceChildren(...lines.map(
      (line, i) => make(i === 0 && lines.length > 1 ? 'strong' : 'span', {}, null, line)));
  tip.hidden = false;
  const {offsetWidth: width, offsetHeight: height} = tip;
  const right = event.clientX + 16 + width < window.innerWidth;
  const below = event.clientY + 16 + height < window.innerHeight;
  tip.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - 12 - width)}px`;
  tip.style.top = `${Math.max(4, below ? event.clientY + 16 : event.clientY - 12 - height)}px`;
}

function hideTip() {
  document.getElementById('tip').hidden = true;
}

// What the canvases are drawn with; follows the style sheet.
const theme = {};
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name
           of ['text', 'soft', 'faint', 'empty', 'chosen', 'background', 'reserved', 'live',
               'liveLine', 'grave', 'idle', 'other']) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
}
