// SPDX-License-Identifier: Apache-2.0
// What colour a block has, as one number a pixel (alpha, blue, green, red).

// Okabe and Ito's palette, which the colour-blind tell apart; the ninth thing is the first again,
// lighter.
const kPalette =
    ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#f0e442', '#999999'];
const kOtherColour = kPalette[kPalette.length - 1];
const kSizes = [
  ['up to 64 KiB', 2 ** 16], ['up to 1 MiB', 2 ** 20], ['up to 8 MiB', 2 ** 23],
  ['up to 32 MiB', 2 ** 25], ['up to 128 MiB', 2 ** 27], ['up to 512 MiB', 2 ** 29],
  ['over 512 MiB', Infinity]
];
// What memory is for, in the order of the palette; `weir report` has the same.
const kPurposes = ['weights', 'gradients', 'activations', 'optimizer state', 'workspace', 'unknown'];
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

function cssOf(pixel) {
  return `rgb(${pixel & 0xff} ${pixel >>> 8 & 0xff} ${pixel >>> 16 & 0xff})`;
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

function purposeColour(name) {
  return name === 'unknown' ? kOtherColour : kPalette[kPurposes.indexOf(name)];
}

// What is coloured by, over all recordings of the page: the same stream has the same colour in
// both.
class Colours {
  constructor(recordings) {
    const union =
        (lists) => [...new Set(lists.flat())].sort((a, b) => BigInt(a) < BigInt(b) ? -1 : 1);
    // Some streams only use blocks of others, and have no colour.
    this.owners = union(
        recordings.map((r) => [...new Set(r.stream)].map((stream) => r.streams[stream])));
    this.pools = union(recordings.map((each) => each.pools));
    this.hasStacks = recordings.some((r) => r.hasStacks);
    this.hasPurposes = recordings.some((r) => r.hasPurposes);
    const used = new Set(recordings.flatMap((r) => [...new Set(r.wholeStack)].map((stack) => r.purposeOfStack[stack])));
    this.purposes = kPurposes.filter((name) => used.has(name));
    this.#nameStacks(recordings);
    this.by = this.hasPurposes ? 'purpose' : this.owners.length > 1 ? 'stream' : this.hasStacks ? 'stack' : 'size';
  }

  // The stacks with the most bytes at a recording's peak have colours of their own; the same stack
  // has the same colour in both recordings.
  #nameStacks(recordings) {
    const most = new Map();  // by the stack's text: {calls, bytes}
    const texts = new Map();
    for (const r of recordings) {
      texts.set(r, r.stacks.map((stack) => JSON.stringify(stack.map((frame) => r.frames[frame]))));
      if (!r.hasStacks) continue;
      const bytes = new Float64Array(r.stacks.length);
      for (let b = 0; b < r.count; ++b)
        if (r.beginStep[b] <= r.peakStep && r.endStep[b] > r.peakStep) bytes[r.stack[b]] += r.bytes[b];
      bytes.forEach((sum, stack) => {
        if (sum === 0 || r.stacks[stack].length === 0) return;
        const text = texts.get(r)[stack];
        if (sum <= (most.get(text)?.bytes ?? 0)) return;
        most.set(text, {calls: callsOf(r, stack), bytes: sum});
      });
    }
    const top = [...most].sort((a, b) => b[1].bytes - a[1].bytes).slice(0, kPalette.length - 1);
    this.stackNames = stackLabels(top.map(([, {calls}]) => calls));
    const places = new Map(top.map(([text], i) => [text, i]));
    this.stackClasses = new Map(recordings.map(
        (r) => [r, Uint8Array.from(texts.get(r), (text) => places.get(text) ?? top.length)]));
  }

  streamColour(id) {
    const index = this.owners.indexOf(id);
    return index < 0 ? kOtherColour : categoryColour(index);
  }
  poolColour(id) {
    return id === null ? kOtherColour : categoryColour(this.pools.indexOf(id));
  }

  // A block's colour, without the shade that tells neighbours apart.
  colourOf(recording, block) {
    const {colours, of} = this.#classes(recording);
    return colours[of(block)];
  }

  legend() {
    if (this.by === 'stack') {
      return [
        ...this.stackNames.map((name, i) => [name, kPalette[i]]),
        ['other stacks', kOtherColour]
      ];
    }
    if (this.by === 'purpose') return this.purposes.map((name) => [name, purposeColour(name)]);
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
    const pixels = new Uint32Array(recording.count);
    for (let block = 0; block < pixels.length; ++block) {
      const of = classes.of(block);
      pixels[block] = found !== null && found[block] === 0 ?
          faint[of] :
          strong[of][Math.imul(block, 0x9e3779b1) >>> 30];
    }
    return pixels;
  }

  #classes(recording) {
    if (this.by === 'stack') {
      const of = this.stackClasses.get(recording);
      return {
        colours: [...kPalette.slice(0, this.stackNames.length), kOtherColour],
        of: (b) => of[recording.stack[b]]
      };
    }
    if (this.by === 'purpose') {
      return {
        colours: kPurposes.map(purposeColour),
        of: (b) => kPurposes.indexOf(recording.purposeOf(b))
      };
    }
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
