// SPDX-License-Identifier: Apache-2.0
// A recording's data, unpacked: html_data.h describes the bytes.

// Reads `count` varints from `bytes`; `signed` ones as differences from the one before where
// `summed`, too.
function readColumn(bytes, count, {signed = false, summed = false} = {}) {
  const out = new Float64Array(count);
  let place = 0;
  let sum = 0;
  for (let i = 0; i < count; ++i) {
    let byte = bytes[place++];
    let value = byte & 0x7f;
    for (let factor = 128; byte >= 0x80; factor *= 128) {
      byte = bytes[place++];
      value += (byte & 0x7f) * factor;
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

async function inflate(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; ++i) bytes[i] = text.charCodeAt(i);
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
      stacks: header.stacks,
      marks: header.marks.map(([time, text]) => ({time, text})),
    });
    const counts = header.counts;
    const read = (name, count, how) => readColumn(columns.get(name), count, how);
    const kDifferences = {signed: true, summed: true};
    this.count = counts.blocks;
    this.#readBlocks(read, counts, kDifferences);
    this.#readSteps(read, counts);
    this.#readFences(read, counts);
    this.reservedTime = read('reserved_time', counts.reserved, kDifferences);
    this.reservedBytes = read('reserved_bytes', counts.reserved, kDifferences);
    this.pageEvents = {
      count: counts.pages,
      kind: read('page_kind', counts.pages),
      time: read('page_time', counts.pages, kDifferences),
      step: read('page_step', counts.pages, kDifferences),
      page: read('page_id', counts.pages, kDifferences),
      heap: read('page_heap', counts.pages),
      address: read('page_address', counts.pages, kDifferences),
      bytes: read('page_bytes', counts.pages),
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
    this.heapOfId = new Map(this.heaps.map(([id], index) => [id, index]));
  }

  #readBlocks(read, {blocks}, kDifferences) {
    this.address = read('address', blocks, kDifferences);
    this.bytes = read('bytes', blocks);
    this.slack = read('slack', blocks);
    this.heap = new Uint32Array(read('heap', blocks));
    this.stack = new Uint32Array(read('stack', blocks));
    this.flags = new Uint8Array(read('flags', blocks));
    this.under = changed(read('under', blocks), (by, i) => by === 0 ? -1 : i - by);
    this.stream = new Uint32Array(blocks);
    this.initialSteps = this.flags.reduce((sum, flags) => sum + (flags & 1), 0);
    this.pool = new Uint32Array(blocks);  // 0: none; else 1 + the index in `pools`
    for (let i = 0; i < blocks; ++i) {
      const heap = this.heaps[this.heap[i]];
      this.stream[i] = heap[1];
      this.pool[i] = heap[2];
    }
    this.reusedBy = changed(
        read('reused', blocks, {signed: true}),
        (by, i) => by === 0 ? -1 :
            by > 0          ? i + by - 1 :
                              i + by);
  }

  // `step`: B where block B begins, ~B where it ends.
  #readSteps(read, {blocks, steps}) {
    const time = read('step_time', steps);
    const kind = read('step', steps);
    this.step = new Int32Array(steps);
    this.stepTime = time;
    this.begin = new Float64Array(blocks);
    this.end = new Float64Array(blocks).fill(Infinity);
    this.beginStep = new Int32Array(blocks);
    this.endStep = new Int32Array(blocks).fill(steps);
    this.peakLive = 0;
    this.peakStep = -1;  // the first after which so much is live
    let live = 0;
    let now = 0;
    let begun = 0;
    for (let i = 0; i < steps; ++i) {
      now += time[i];
      time[i] = now;
      const block = kind[i] === 0 ? begun++ : begun - kind[i];
      (kind[i] === 0 ? this.begin : this.end)[block] = now;
      (kind[i] === 0 ? this.beginStep : this.endStep)[block] = i;
      this.step[i] = kind[i] === 0 ? block : ~block;
      live += kind[i] === 0 ? this.bytes[block] : -this.bytes[block];
      if (live > this.peakLive) [this.peakLive, this.peakStep] = [live, i];
    }
  }

  #readFences(read, {blocks, fences}) {
    const count = read('fences', blocks);
    this.firstFence = new Uint32Array(blocks + 1);
    for (let i = 0; i < blocks; ++i) this.firstFence[i + 1] = this.firstFence[i] + count[i];
    this.fenceStream = read('fence_stream', fences);
    this.fenceAfter = read('fence_after', fences);
  }

  #readHappenings(read, {happenings}, kDifferences) {
    const kind = read('happening_kind', happenings);
    const time = read('happening_time', happenings, kDifferences);
    const amount = read('happening_amount', happenings);
    const text = [
      (n) => `out of memory: ${formatBytes(n)} asked for`,
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
  get hasStacks() {
    return this.stacks.length > 1;
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
  frameTexts(stack) {
    return this.stacks[stack].map((frame) => this.frameText(frame));
  }

  // A time with as many digits as tell a thousandth of the recording apart.
  roughTime(ns) {
    return formatTime(ns, 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, this.duration / 1000)))), ns);
  }

  // What PyTorch's allocator had reserved at a time; its peak, where nothing else is known.
  otherAt(time) {
    if (this.otherTime.length === 0) return this.otherPeakReserved;
    const after = d3.bisectRight(this.otherTime, time);
    return this.otherBytes[Math.max(0, after - 1)];
  }

  // Bytes held at a time, and the most of them from one time to another.
  reservedAt(time) {
    const after = d3.bisectRight(this.reservedTime, time);
    return after === 0 ? 0 : this.reservedBytes[after - 1];
  }
  mostReserved(from, to) {
    let most = this.reservedAt(from);
    for (let i = d3.bisectRight(this.reservedTime, from);
         i < this.reservedTime.length && this.reservedTime[i] <= to; ++i) {
      most = Math.max(most, this.reservedBytes[i]);
    }
    return most;
  }
}
