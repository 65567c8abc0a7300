// The picture of the blocks, in tiles that are painted a few a frame and kept while the view moves.
//
// A column of pixels shows one moment: of the time that it stands for, the one when most was live.

const kTileWidth = 256;
const kMostTiles = 96;
const kPaintBudget = 9;  // ms a frame

class Painter {
  constructor(selection, pixels, height) {
    Object.assign(this, {selection, pixels, height});
    this.stack = new Stack(selection);
    this.image = new ImageData(kTileWidth, height);
    this.out = new Uint32Array(this.image.data.buffer);
  }

  // The step that the column of pixels [from, to) in time shows; -2: none, there is nothing there.
  stepOf(from, to) {
    if (to <= 0 || from > this.lasts) return -2;
    const first = this.selection.stepAt(from);
    const last = this.selection.stepAt(to);
    return first === last ? first : this.selection.highest(first, last);
  }

  get lasts() { return Math.max(this.selection.recording.duration, 1); }

  tile(index, scale) {
    this.out.fill(0);
    let shown = -2;
    for (let x = 0; x < kTileWidth; ++x) {
      const from = (index * kTileWidth + x) * scale.time;
      const step = this.stepOf(from, from + scale.time);
      if (step !== -2 && step === shown) {
        this.#repeat(x);
      } else if (step !== -2) {
        this.stack.moveTo(step);
        this.#column(x, scale);
      }
      shown = step;
    }
    const canvas = document.createElement("canvas");
    canvas.width = kTileWidth;
    canvas.height = this.height;
    canvas.getContext("2d").putImageData(this.image, 0, 0);
    return canvas;
  }

  #repeat(x) {
    const {out, height} = this;
    for (let place = x; place < height * kTileWidth; place += kTileWidth) out[place] = out[place - 1];
  }

  #column(x, {bytes: bytesAPixel, bottom}) {
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
      if (below - top >= 4) out[top * kTileWidth + x] = darker(colour);
      below = top;
      if (top === 0) return;
    }
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

  // Which tiles cover `width` pixels from column `first` on; from the middle outwards.
  static covering(first, width) {
    const from = Math.floor(first / kTileWidth);
    const to = Math.floor((first + width - 1) / kTileWidth);
    const middle = (from + to) / 2;
    return d3.range(from, to + 1).sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle));
  }

  // Paints what is missing until `deadline`; whether nothing is missing any more.
  paint(first, width, deadline) {
    for (const index of TileSet.covering(first, width)) {
      if (this.tiles.has(index)) continue;
      if (performance.now() > deadline) return false;
      this.tiles.set(index, this.painter.tile(index, this.scale));
      if (this.tiles.size > kMostTiles) this.tiles.delete(this.tiles.keys().next().value);
    }
    return true;
  }
}

// The tiles of what is shown, and, while they are being painted, of what was shown before.
class Tiles {
  // `painter`: null for no picture. Where `keep`, the old picture stands until the new one is there.
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
      if (this.old) context.clearRect(x, 0, kTileWidth, tile.height);
      context.drawImage(tile, x, 0);
    }
    return this.complete;
  }

  #drawOld(context, scale, first, width) {
    const {scale: was, tiles, painter} = this.old;
    const wide = was.time / scale.time;
    const high = was.bytes / scale.bytes;
    const bottom = painter.height + (scale.bottom - was.bottom) / scale.bytes;
    for (const [index, tile] of tiles) {
      const x = index * kTileWidth * wide - first;
      if (x > width || x + kTileWidth * wide < 0) continue;
      context.drawImage(tile, x, bottom - tile.height * high, kTileWidth * wide, tile.height * high);
    }
  }
}
