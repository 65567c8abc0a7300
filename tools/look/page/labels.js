// SPDX-License-Identifier: Apache-2.0
// The sizes of large blocks, written on them where there is room.

const kLabelHeight = 15;     // px that a block must be high
const kLabelHalfWidth = 32;  // px to each side in which it must stay where it is
const kLabelEvery = 32;      // px between two looks

// By block: from where it is, in bytes, of those high enough at a column of the picture.
function tallAt(chart, column) {
  const {painter} = chart.tiles;
  const {scale, stack, rows, height} = chart;
  const step = painter.stepOf(column, scale.time);
  const tall = new Map();
  if (step < 0) return tall;
  stack.moveTo(step);
  const least = kLabelHeight * rows / height * scale.bytes;
  const top = scale.bottom + rows * scale.bytes;
  stack.visit((block, from, to) => {
    if (to - from >= least && to > scale.bottom) tall.set(block, from);
    return to > top;
  });
  return tall;
}

// {x, y, text, colour} in pixels of the canvas, for what is in view.
function placeLabels(chart) {
  const {recording, scale, columns, rows, firstColumn: first, pixels} = chart;
  const ratio = columns / chart.width;
  const half = Math.round(kLabelHalfWidth * ratio);
  const labels = new Map();
  for (let x = half; x + half < columns; x += Math.round(kLabelEvery * ratio)) {
    const [left, here, right] = [x - half, x, x + half].map((at) => tallAt(chart, first + at));
    for (const [block, from] of here) {
      if (labels.has(block) || left.get(block) !== from || right.get(block) !== from) continue;
      const bottom = Math.max(from, scale.bottom);
      const top = Math.min(from + recording.bytes[block], scale.bottom + rows * scale.bytes);
      if ((top - bottom) / scale.bytes < kLabelHeight * ratio) continue;
      labels.set(block, {
        x,
        y: rows - ((bottom + top) / 2 - scale.bottom) / scale.bytes,
        text: formatBytes(recording.bytes[block]),
        colour: readableOn(pixels[block]),
      });
    }
  }
  return [...labels.values()];
}

function drawLabels(context, labels, ratio) {
  context.font = `${11 * ratio}px system-ui, "Liberation Sans", "DejaVu Sans", sans-serif`;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  for (const {x, y, text, colour} of labels) {
    context.fillStyle = colour;
    context.fillText(text, x, y);
  }
}
