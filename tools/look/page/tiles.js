// SPDX-License-Identifier: Apache-2.0
// The picture of the blocks, in tiles that are painted a few a frame and kept while the view moves.
//
// A column of pixels shows one moment: of the time that it stands for, the one when most was live.

const kTileWidth = 256;
const kMostTiles = 96;
const kPaintBudget = 9;    // ms a frame
const kColumnsAtOnce = 8;  // between two looks at the clock

class Painter {
  constructor(selection, pixels, height) {
    Object.assign(this, {selection, pixels, height});
    this.stack = new Stack(selection);
  }

  // The step that the column of pixels [from, to) in time shows; -2: none, there is nothing there.
  stepOf(from, to) {
    if (to <= 0 || from > this.lasts) return -2;
    const first = this.selection.stepAt(from);
    const last = this.selection.stepAt(to);
    return first === last ? first : this.selection.highest(first, last);
  }

  get lasts() {
    return Math.max(this.selection.recording.duration, 1);
  }

  // Paints what is missing of a tile, until `deadline`; whether nothing is missing any more.
  paint(tile, scale, deadline) {
    this.out = tile.out;
    while (tile.painted < kTileWidth && performance.now() < deadline) {
      for (let i = 0; i < kColumnsAtOnce; ++i) this.#column(tile, tile.painted++, scale);
    }
    tile.show();
    return tile.painted >= kTileWidth;
  }

  #column(tile, x, scale) {
    const from = (tile.index * kTileWidth + x) * scale.time;
    const step = this.stepOf(from, from + scale.time);
    if (step !== -2 && step === tile.shown) {
      this.#repeat(x);
    } else if (step !== -2) {
      this.stack.moveTo(step);
      this.#fill(x, scale);
    }
    tile.shown = step;
  }

  #repeat(x) {
    const {out, height} = this;
    for (let place = x; place < height * kTileWidth; place += kTileWidth)
      out[place] = out[place - 1];
  }

  #fill(x, {bytes: bytesAPixel, bottom}) {
    const {out, height, pixels, stack} = this;
    const {next, ground} = stack;
    const {bytes} = this.selection.recording;
    let sum = -bottom;
    let below = height;  // the lowest row that is painted already
    for (let block = next[ground]; block !== ground; block = next[block]) {
      sum += bytes[block];
      const top = Math.max(0, height - Math.round(sum / bytesAPixel));
      if (top >= below) continue;
      const colour = pixels[block];
      for (let row = top; row < below; ++row) out[row * kTileWidth + x] = colour;
      if (below - top >= 6) out[top * kTileWidth + x] = darker(colour);
      below = top;
      if (top === 0) return;
    }
  }
}

class Tile {
  constructor(index, height) {
    this.index = index;
    this.image = new ImageData(kTileWidth, height);
    this.out = new Uint32Array(this.image.data.buffer);
    this.canvas = document.createElement('canvas');
    this.canvas.width = kTileWidth;
    this.canvas.height = height;
    this.painted = 0;  // columns
    this.shown = -2;   // the step of the last one
  }

  show() {
    this.canvas.getContext('2d').putImageData(this.image, 0, 0);
    if (this.painted >= kTileWidth) this.image = this.out = null;
  }
}

// `scale`: {time: ns a pixel, bytes: bytes a pixel, bottom: bytes below the picture}
class TileSet {
  constructor(painter, scale) {
    this.painter = painter;
    this.scale = scale;
    this.tiles = new Map();
  }

  hasScale({time, bytes, bottom}) {
    return this.scale.time === time && this.scale.bytes === bytes && this.scale.bottom === bottom;
  }

  // Which tiles cover `width` pixels from column `first` on. From the left: stacks follow each
  // other.
  static covering(first, width) {
    return d3.range(
        Math.floor(first / kTileWidth), Math.floor((first + width - 1) / kTileWidth) + 1);
  }

  // Paints what is missing until `deadline`; whether nothing is missing any more.
  paint(first, width, deadline) {
    for (const index of TileSet.covering(first, width)) {
      let tile = this.tiles.get(index);
      if (tile === undefined) {
        tile = new Tile(index, this.painter.height);
        this.tiles.set(index, tile);
        if (this.tiles.size > kMostTiles) this.tiles.delete(this.tiles.keys().next().value);
      }
      if (tile.painted < kTileWidth && !this.painter.paint(tile, this.scale, deadline))
        return false;
    }
    return true;
  }
}

// The tiles of what is shown, and, while they are being painted, of what was shown before.
class Tiles {
  // `painter`: null for no picture. Where `keep`, the old picture stands until the new one is
  // there.
  use(painter, keep) {
    this.painter = painter;
    this.old = keep && this.old ? this.old : keep && this.complete ? this.current : null;
    this.current = null;
    this.complete = false;
  }

  // Draws the view; whether it is finished. `first`: the column at the left edge.
  draw(context, scale, first, width) {
    if (this.current === null || !this.current.hasScale(scale)) {
      if (this.complete) this.old = this.current;
      this.current = new TileSet(this.painter, scale);
    }
    this.complete = this.current.paint(first, width, performance.now() + kPaintBudget);
    if (this.complete) this.old = null;
    if (this.old) this.#drawOld(context, scale, first, width);
    for (const index of TileSet.covering(first, width)) {
      const tile = this.current.tiles.get(index);
      if (tile === undefined) continue;
      const x = index * kTileWidth - first;
      if (this.old) context.clearRect(x, 0, tile.painted, tile.canvas.height);
      context.drawImage(tile.canvas, x, 0);
    }
    return this.complete;
  }

  #drawOld(context, scale, first, width) {
    const {scale: was, tiles, painter} = this.old;
    const wide = was.time / scale.time;
    const high = was.bytes / scale.bytes;
    const bottom = painter.height + (scale.bottom - was.bottom) / scale.bytes;
    const height = painter.height * high;
    for (const [index, {canvas}] of tiles) {
      const x = index * kTileWidth * wide - first;
      if (x > width || x + kTileWidth * wide < 0) continue;
      context.drawImage(canvas, x, bottom - height, kTileWidth * wide, height);
    }
  }
}
