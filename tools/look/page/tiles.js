// SPDX-License-Identifier: Apache-2.0
// The picture of the blocks, in tiles that are painted a few a frame and kept while the view moves.
//
// A column of pixels shows one moment: of the time that it stands for, the one when most was live.

const kTileWidth = 256;
const kMostTiles = 96;
// ms a frame: while the view moves; when it rests; and for the first picture, before which there is
// nothing that could move.
const kPaintBudget = {moving: 8, resting: 16, first: 150};
const kColumnsAtOnce = 8;     // between two looks at the clock
const kStepsAtOnce = 50000;  // of the stack, likewise

class Painter {
  constructor(selection, pixels, height) {
    Object.assign(this, {selection, pixels, height});
    this.stack = new Stack(selection);
    this.image = new ImageData(kTileWidth, height);  // of the tile that is being painted
    this.out = new Uint32Array(this.image.data.buffer);
    this.tile = null;
  }

  // The step that a column of pixels, `time` ns wide, shows; -2: none, there is nothing there.
  stepOf(column, time) {
    if ((column + 1) * time <= 0 || column * time > this.lasts) return -2;
    return this.selection.stepOfColumn(column, time);
  }

  get lasts() {
    return Math.max(this.selection.recording.duration, 1);
  }

  // Paints what is missing of a tile, until `deadline`; whether nothing is missing any more.
  paint(tile, scale, deadline) {
    if (this.tile !== tile) {  // of one that another took the place of, nothing is left
      this.tile = tile;
      this.out.fill(0);
      tile.painted = 0;
      tile.shown = -2;
    }
    const from = tile.painted;
    while (tile.painted < kTileWidth && performance.now() < deadline) {
      for (let i = 0; i < kColumnsAtOnce && this.#column(tile, tile.painted, scale); ++i) ++tile.painted;
    }
    tile.show(this.image, from);
    if (tile.painted < kTileWidth) return false;
    this.tile = null;
    return true;
  }

  // False: the stack is still on its way there.
  #column(tile, x, scale) {
    const step = this.stepOf(tile.index * kTileWidth + x, scale.time);
    if (step !== -2 && step === tile.shown) {
      this.#repeat(x);
    } else if (step !== -2) {
      if (!this.stack.moveTo(step, kStepsAtOnce)) return false;
      this.#fill(x, scale);
    }
    tile.shown = step;
    return true;
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
  // `canvas`: one that is no longer needed, or undefined. What is on it is not shown: see `painted`.
  constructor(index, height, canvas = document.createElement('canvas')) {
    this.index = index;
    this.canvas = canvas;
    if (canvas.width !== kTileWidth) canvas.width = kTileWidth;
    if (canvas.height !== height) canvas.height = height;
    this.context = canvas.getContext('2d');
    this.painted = 0;  // columns
    this.shown = -2;   // the step of the last one
  }

  // Takes the columns of `image` that were painted last.
  show(image, from) {
    if (this.painted > from) {
      this.context.putImageData(image, 0, 0, from, 0, this.painted - from, image.height);
    }
  }

  draw(context, x) {
    const {canvas, painted} = this;
    if (painted > 0) context.drawImage(canvas, 0, 0, painted, canvas.height, x, 0, painted, canvas.height);
  }
}

// `scale`: {time: ns a pixel, bytes: bytes a pixel, bottom: bytes below the picture}
class TileSet {
  // `spare`: canvases of tiles that are gone.
  constructor(painter, scale, spare) {
    this.painter = painter;
    this.scale = scale;
    this.spare = spare;
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
        if (this.tiles.size >= kMostTiles) this.#drop(this.tiles.values().next().value);
        tile = new Tile(index, this.painter.height, this.spare.pop());
        this.tiles.set(index, tile);
      }
      if (tile.painted < kTileWidth && !this.painter.paint(tile, this.scale, deadline))
        return false;
    }
    return true;
  }

  #drop(tile) {
    this.tiles.delete(tile.index);
    if (this.spare.length < kMostTiles) this.spare.push(tile.canvas);
  }
  // It is not shown any more.
  drop() {
    for (const tile of this.tiles.values()) this.#drop(tile);
  }
}

// The tiles of what is shown, and, while they are being painted, of what was shown before.
class Tiles {
  #spare = [];
  #any = false;  // a picture has been finished

  // `painter`: null for no picture. Where `keep`, the old picture stands until the new one is
  // there.
  use(painter, keep) {
    this.painter = painter;
    this.#show(null, keep && this.old ? this.old : keep && this.complete ? this.current : null);
    this.complete = false;
  }

  #show(current, old) {
    for (const set of new Set([this.current, this.old])) {
      if (set && set !== current && set !== old) set.drop();
    }
    this.current = current;
    this.old = old;
  }

  // Draws the view; whether it is finished. `first`: the column at the left edge.
  draw(context, scale, first, width) {
    const rests = this.current?.hasScale(scale) && this.first === first;
    this.first = first;
    if (!this.current?.hasScale(scale)) {
      this.#show(
          new TileSet(this.painter, scale, this.#spare), this.complete ? this.current : this.old);
    }
    const {moving, resting, first: atFirst} = kPaintBudget;
    const budget = !this.#any ? atFirst : rests ? resting : moving;
    this.complete = this.current.paint(first, width, performance.now() + budget);
    this.#any ||= this.complete;
    if (this.complete) this.#show(this.current, null);
    if (this.old) this.#drawOld(context, scale, first, width);
    for (const index of TileSet.covering(first, width)) {
      const tile = this.current.tiles.get(index);
      if (tile === undefined) continue;
      const x = index * kTileWidth - first;
      if (this.old) context.clearRect(x, 0, tile.painted, tile.canvas.height);
      tile.draw(context, x);
    }
    return this.complete;
  }

  #drawOld(context, scale, first, width) {
    const {scale: was, tiles, painter} = this.old;
    const wide = was.time / scale.time;
    const high = was.bytes / scale.bytes;
    const bottom = painter.height + (scale.bottom - was.bottom) / scale.bytes;
    const height = painter.height * high;
    for (const [index, {canvas, painted}] of tiles) {
      const x = index * kTileWidth * wide - first;
      if (painted < kTileWidth || x > width || x + kTileWidth * wide < 0) continue;
      context.drawImage(canvas, x, bottom - height, kTileWidth * wide, height);
    }
  }
}
