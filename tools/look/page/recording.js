// SPDX-License-Identifier: Apache-2.0
// A recording's data, unpacked: html_data.h describes the bytes.

// Reads `count` varints from `bytes` into an array of the type `as`; `signed` ones as differences
// from the one before where `summed`, too.
function readColumn(bytes, count, {signed = false, summed = false, as = Float64Array} = {}) {
  const out = new as(count);
  if (!signed && bytes.length === count) {  // a byte each
    out.set(bytes);
    return out;
  }
  let place = 0;
  let sum = 0;
  for (let i = 0; i < count; ++i) {
    const byte = bytes[place++];
    let value = byte & 0x7f;
    if (byte >= 0x80) {
      // Most have three bytes at most, and whole numbers of 32 bits are faster.
      let next = bytes[place++];
      value |= (next & 0x7f) << 7;
      if (next >= 0x80) {
        next = bytes[place++];
        value |= (next & 0x7f) << 14;
        for (let factor = 2 ** 21; next >= 0x80; factor *= 128) {
          next = bytes[place++];
          value += (next & 0x7f) * factor;
        }
      }
    }
    if (signed) {
      if (value < 2 ** 31) {  // most are, and these are faster
        value = value & 1 ? ~(value >> 1) : value >> 1;
      } else {
        value = value % 2 === 1 ? -(value + 1) / 2 : value / 2;
      }
    }
    sum += value;
    out[i] = summed ? sum : value;
  }
  return out;
}

// As Int32Array.from(values, change), which is many times slower.
function changed(values, change) {
  const out = new Int32Array(values.length);
  for (let i = 0; i < out.length; ++i) out[i] = change(values[i], i);
  return out;
}

// A mark of the program's, or of what a trace or log says failed.
function markOf(text) {
  const [, bytes] = text.match(/^out of memory: (\d+) bytes/) ?? [];
  return bytes === undefined ? {text} : {text: failedText(Number(bytes)), grave: true};
}
const failedText = (bytes) => `out of memory: ${formatBytes(bytes)} asked for`;

function bytesOf(base64) {
  if (Uint8Array.fromBase64 !== undefined) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflate(base64) {
  const bytes = bytesOf(base64);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Everything is by index: blocks in order of their beginning, streams and pools in order of first
// use. Times are in ns since the recording's beginning.
class Recording {
  static async read(base64) {
    const bytes = await inflate(base64);
    const size = new DataView(bytes.buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
    const columns = new Map();
    let place = 4 + size;
    for (const [name, length] of header.columns) {
      columns.set(name, bytes.subarray(place, place + length));
      place += length;
    }
    return new Recording(header, columns);
  }

  constructor(header, columns) {
    Object.assign(this, {
      source: header.source,
      program: header.program,
      device: header.device,
      deviceBytes: header.device_bytes,
      duration: header.duration,
      events: header.events,
      dropped: header.dropped,
      damage: header.damage,
      streams: header.streams,
      pools: header.pools,
      heaps: header.heaps,
      frames: header.frames,
      // What pictures show of a stack: the program's own calls; and all of it.
      stacks: header.calls.map(([frames]) => frames),
      naming: header.calls.map(([, named, via]) => ({named, via})),
      callsOfStack: header.calls_of_stack,
      purposeOfStack: header.purposes,  // by whole stack; empty: not told
      marks: header.marks.map(([time, text]) => ({time, ...markOf(text)})),
      // What the file says beside its events: {has_times, devices, failure, verdict}.
      origin: header.origin,
    });
    const counts = header.counts;
    const read = (name, count, how) => readColumn(columns.get(name), count, how);
    const kDifferences = {signed: true, summed: true};
    const frames = read('stack_frames', header.calls_of_stack.length);
    const all = read('stack_frame', d3.sum(frames), {as: Uint32Array});
    let begin = 0;
    this.wholeStacks = Array.from(frames, (count) => all.subarray(begin, begin += count));
    this.count = counts.blocks;
    this.#readBlocks(read, counts, kDifferences);
    this.setSteps(read('step_time', counts.steps), read('step', counts.steps, {as: Int32Array}));
    this.#readWhenUsed(read, counts);
    this.reservedTime = read('reserved_time', counts.reserved, kDifferences);
    this.reservedBytes = read('reserved_bytes', counts.reserved, kDifferences);
    this.pageEvents = {
      count: counts.pages,
      kind: read('page_kind', counts.pages, {as: Uint8Array}),
      time: read('page_time', counts.pages, kDifferences),
      step: read('page_step', counts.pages, {...kDifferences, as: Uint32Array}),
      page: read('page_id', counts.pages, {...kDifferences, as: Uint32Array}),
      heap: read('page_heap', counts.pages, {as: Uint32Array}),
      address: read('page_address', counts.pages, kDifferences),
      bytes: read('page_bytes', counts.pages),
      further: read('page_further', counts.pages, {as: Uint32Array}),
    };
    this.#readHappenings(read, counts, kDifferences);
    this.waits = {
      time: read('wait_time', counts.waits, kDifferences),
      stream: read('wait_stream', counts.waits),
      other: read('wait_other', counts.waits),
    };
    // Of PyTorch's own allocator, where the program was recorded under it.
    this.otherPeakReserved = header.other_peak_reserved;
    this.otherTime = read('other_time', counts.other, kDifferences);
    this.otherBytes = read('other_bytes', counts.other, kDifferences);
    const recorded = read('recorded_address', counts.addresses, kDifferences);
    if (recorded.length === this.count) this.recordedAddress = recorded;
    this.heapOfId = new Map(this.heaps.map(([id], index) => [id, index]));
  }

  #readBlocks(read, {blocks}, kDifferences) {
    this.address = read('address', blocks, kDifferences);
    this.bytes = read('bytes', blocks);
    this.heap = read('heap', blocks, {as: Uint32Array});
    this.wholeStack = read('stack', blocks, {as: Uint32Array});
    this.stack = this.wholeStack.map((stack) => this.callsOfStack[stack]);
    this.flags = read('flags', blocks, {as: Uint8Array});
    this.stream = new Uint32Array(blocks);
    this.initialSteps = this.flags.reduce((sum, flags) => sum + (flags & 1), 0);
    this.pool = new Uint32Array(blocks);  // 0: none; else 1 + the index in `pools`
    const streams = Uint32Array.from(this.heaps, ([, stream]) => stream);
    const pools = Uint32Array.from(this.heaps, ([, , pool]) => pool);
    for (let i = 0; i < blocks; ++i) {
      this.stream[i] = streams[this.heap[i]];
      this.pool[i] = pools[this.heap[i]];
    }
  }

  // What the first picture does not need is read when somebody asks for it, and kept.
  #readWhenUsed(read, {blocks, fences}) {
    const later = (name, value) => Object.defineProperty(this, name, {
      configurable: true,
      get() {
        const found = value();
        Object.defineProperty(this, name, {value: found});
        return found;
      }
    });
    later('slack', () => read('slack', blocks));
    later('under', () => changed(read('under', blocks, {as: Int32Array}), (by, i) => by === 0 ? -1 : i - by));
    later('reusedBy', () => changed(
        read('reused', blocks, {signed: true}),
        (by, i) => by === 0 ? -1 :
            by > 0          ? i + by - 1 :
                              i + by));
    later('firstFence', () => {
      const first = new Uint32Array(blocks + 1);
      const count = read('fences', blocks);
      for (let i = 0; i < blocks; ++i) first[i + 1] = first[i] + count[i];
      return first;
    });
    later('fenceStream', () => read('fence_stream', fences));
    later('fenceAfter', () => read('fence_after', fences));
  }

  // `time`: of each step since the one before; `step`: as the column has it. Then `step` is B where block
  // B begins, ~B where it ends.
  setSteps(time, step) {
    const {bytes, count: blocks} = this;
    const steps = step.length;
    const begin = new Float64Array(blocks);
    const end = new Float64Array(blocks).fill(Infinity);
    const beginStep = new Int32Array(blocks);
    const endStep = new Int32Array(blocks).fill(steps);
    const live = new Float64Array(steps);  // after each step
    let sum = 0;
    let now = 0;
    let begun = 0;
    let peakLive = 0;
    let peakStep = -1;  // the first after which so much is live
    for (let i = 0; i < steps; ++i) {
      time[i] = now += time[i];
      const ago = step[i];
      if (ago === 0) {
        const block = begun++;
        begin[block] = now;
        beginStep[block] = i;
        step[i] = block;
        sum += bytes[block];
        if (sum > peakLive) {
          peakLive = sum;
          peakStep = i;
        }
      } else {
        const block = begun - ago;
        end[block] = now;
        endStep[block] = i;
        step[i] = ~block;
        sum -= bytes[block];
      }
      live[i] = sum;
    }
    Object.assign(this, {step, stepTime: time, begin, end, beginStep, endStep, live, peakLive, peakStep});
  }

  #readHappenings(read, {happenings}, kDifferences) {
    const kind = read('happening_kind', happenings);
    const time = read('happening_time', happenings, kDifferences);
    const amount = read('happening_amount', happenings);
    const text = [
      failedText,
      (n) => `the host waited ${formatDuration(n)}`,
      (n) => `${formatBytes(n)} given back to the driver`,
      () => 'a capture began',
      () => 'a capture ended',
    ];
    // When the host waited for the device; an event comes when its wait has ended.
    this.hostWaits = [];
    kind.forEach((k, i) => {
      if (k === 1) this.hostWaits.push({from: Math.max(0, time[i] - amount[i]), to: time[i], took: amount[i]});
    });
    this.happenings =
        Array.from(kind, (k, i) => ({time: time[i], text: text[k](amount[i]), grave: k < 2}));
  }

  // A recording of one moment (a snapshot) lasts no time.
  get isMoment() {
    return this.duration === 0;
  }
  // Whether memory rose after the beginning: else what came before may have been more.
  get showsPeak() {
    return !this.isMoment && this.peakStep >= this.initialSteps;
  }
  // Blocks without an allocation in the file, which have a name in the stead of a stack.
  isFromBefore(stack) {
    const [frame] = this.stacks[stack];
    return frame !== undefined && /^(there|from) before the recording|^allocated while nothing/.test(this.frames[frame][0]);
  }
  // Backward passes have no line of the program's, either.
  hasLine(stack) {
    return this.stacks[stack].length > 0 && !this.isFromBefore(stack) &&
        !/backward pass/.test(this.frames[this.stacks[stack][0]].join(' '));
  }
  get hasStacks() {
    return this.stacks.length > 1;
  }
  get hasPurposes() {
    return this.purposeOfStack.length > 0;
  }
  purposeOf(block) {
    return this.purposeOfStack[this.wholeStack[block]] ?? 'unknown';
  }
  isLiveAtEnd(block) {
    return this.end[block] === Infinity;
  }
  wasLiveAtBegin(block) {
    return (this.flags[block] & 1) !== 0;
  }
  wasWaitedFor(block) {
    return (this.flags[block] & 2) !== 0;
  }
  poolName(pool) {
    return pool === 0 ? 'no pool' : `pool ${this.pools[pool - 1]}`;
  }
  streamName(stream) {
    return formatStream(this.streams[stream]);
  }

  frameText(frame) {
    const [name, file, line] = this.frames[frame];
    const place = file === '' ? '' : line === 0 ? file : `${file}:${line}`;
    return {name: name || '(unknown function)', place};
  }
  callsOfWhole(whole) {
    return this.stacks[this.callsOfStack[whole]];
  }
  frameTexts(frames) {
    return Array.from(frames, (frame) => this.frameText(frame));
  }

  // The address that the program had it at: Weir's replay has others.
  addressOf(block) {
    return (this.recordedAddress ?? this.address)[block];
  }

  // A time with as many digits as tell a thousandth of the recording apart.
  roughTime(ns) {
    if (!this.origin.has_times) return formatTime(ns);
    return formatTime(ns, 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, this.duration / 1000)))), ns);
  }

  // What PyTorch's allocator had reserved at a time; its peak, where nothing else is known.
  otherAt(time) {
    if (this.otherTime.length === 0) return this.otherPeakReserved;
    const after = countUpTo(this.otherTime, time);
    return this.otherBytes[Math.max(0, after - 1)];
  }

  // Bytes held at a time, and the most of them from one time to another.
  reservedAt(time) {
    const after = countUpTo(this.reservedTime, time);
    return after === 0 ? 0 : this.reservedBytes[after - 1];
  }
  mostReserved(from, to) {
    let most = this.reservedAt(from);
    for (let i = countUpTo(this.reservedTime, from);
         i < this.reservedTime.length && this.reservedTime[i] <= to; ++i) {
      most = Math.max(most, this.reservedBytes[i]);
    }
    return most;
  }
}
