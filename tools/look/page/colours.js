// What colour a block has, as one number a pixel (alpha, blue, green, red).

// Okabe and Ito's palette, which the colour-blind tell apart; the ninth thing is the first again,
// lighter.
const kPalette =
    ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#f0e442', '#999999'];
const kSizes = [
  ['up to 64 KiB', 2 ** 16], ['up to 1 MiB', 2 ** 20], ['up to 8 MiB', 2 ** 23],
  ['up to 32 MiB', 2 ** 25], ['up to 128 MiB', 2 ** 27], ['up to 512 MiB', 2 ** 29],
  ['more', Infinity]
];
// Neighbours of one colour differ a little, so that blocks can be told apart.
const kShades = [0, 0.16, 0.3, 0.08];
const kSizeShades = [0, 0.08, 0.14, 0.04];  // or one size looks like another

function mixed(colour, other, share) {
  return d3.interpolateRgb(colour, other)(share);
}

function asPixel(colour) {
  const {r, g, b} = d3.rgb(colour);
  return (0xff000000 | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}

function darker(pixel) {
  return (0xff000000 | (((pixel & 0xfefefe) >>> 1) + ((pixel & 0xfcfcfc) >>> 2))) >>> 0;
}

// Black or white, whichever can be read on a pixel's colour.
function readableOn(pixel) {
  const [red, green, blue] = [0, 8, 16].map((bits) => ((pixel >>> bits & 0xff) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.25 ? '#000000' : '#ffffff';
}

function categoryColour(index) {
  const round = Math.floor(index / kPalette.length);
  return mixed(kPalette[index % kPalette.length], '#ffffff', Math.min(0.6, 0.3 * round));
}

function sizeClass(bytes) {
  return kSizes.findIndex(([, most]) => bytes <= most);
}
function sizeColour(index) {
  return d3.interpolateViridis(0.08 + 0.9 * index / (kSizes.length - 1));
}

// What is coloured by, over all recordings of the page: the same stream has the same colour in
// both.
class Colours {
  constructor(recordings) {
    const union =
        (lists) => [...new Set(lists.flat())].sort((a, b) => BigInt(a) < BigInt(b) ? -1 : 1);
    this.streams = union(recordings.map((each) => each.streams));
    // Some only use blocks of others.
    const owners =
        (r) => [...new Set(r.heaps.map(([, stream]) => stream))].map((i) => r.streams[i]);
    const own = new Set(recordings.flatMap(owners));
    this.owners = this.streams.filter((id) => own.has(id));
    this.pools = union(recordings.map((each) => each.pools));
    this.by = 'stream';
  }

  streamColour(id) {
    return categoryColour(this.streams.indexOf(id));
  }
  poolColour(id) {
    return id === null ? '#999999' : categoryColour(this.pools.indexOf(id));
  }

  legend() {
    if (this.by === 'size') return kSizes.map(([name], i) => [name, sizeColour(i)]);
    if (this.by === 'stream')
      return this.owners.map((id) => [formatStream(id), this.streamColour(id)]);
    return [
      ['no pool', this.poolColour(null)],
      ...this.pools.map((id) => [`pool ${id}`, this.poolColour(id)])
    ];
  }

  // By block. `found`: by block, 1 or 0, or null; what is not found is faint.
  pixels(recording, found, background) {
    const classes = this.#classes(recording);
    const shades = this.by === 'size' ? kSizeShades : kShades;
    const strong = classes.colours.map(
        (colour) => shades.map((share) => asPixel(mixed(colour, '#ffffff', share))));
    const faint = classes.colours.map((colour) => asPixel(mixed(colour, background, 0.82)));
    return Uint32Array.from({length: recording.count}, (_, block) => {
      const of = classes.of(block);
      if (found !== null && found[block] === 0) return faint[of];
      return strong[of][Math.imul(block, 0x9e3779b1) >>> 30];
    });
  }

  #classes(recording) {
    if (this.by === 'size') {
      return {
        colours: kSizes.map((_, i) => sizeColour(i)),
        of: (b) => sizeClass(recording.bytes[b])
      };
    }
    if (this.by === 'pool') {
      return {
        colours: [null, ...recording.pools].map((id) => this.poolColour(id)),
        of: (b) => recording.pool[b]
      };
    }
    return {
      colours: recording.streams.map((id) => this.streamColour(id)),
      of: (b) => recording.stream[b]
    };
  }
}
