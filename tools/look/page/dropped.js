// SPDX-License-Identifier: Apache-2.0
// A file that is dropped on an empty page: a snapshot of PyTorch's (pickle, JSON) or a trace, each
// compressed or not, read here and sent nowhere. The page shows the program as it ran; what Weir would
// have done with it, `weir look FILE` says.

const kLargest = 400 * 2 ** 20;  // bytes of a file; larger ones do not fit into a browser
const kGrainBytes = 512;
const kMostDevices = 1024;

// Plain data of protocols 2 to 5, as docs of pickletools.py define it. What would make anything else is
// refused.
function unpickled(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const decoder = new TextDecoder();
  const stack = [];
  const marks = [];
  const memo = [];
  let at = 0;
  const number = (size) => {
    let value = 0;
    for (let i = size - 1; i >= 0; --i) value = value * 256 + view.getUint8(at + i);
    at += size;
    return value;
  };
  const long = (size) => {
    const negative = size > 0 && view.getUint8(at + size - 1) >= 0x80;
    return number(size) - (negative ? 256 ** size : 0);
  };
  const text = (size) => {
    const length = number(size);
    if (at + length > bytes.length) throw new RangeError();
    at += length;
    return decoder.decode(bytes.subarray(at - length, at));
  };
  const set = (dict, items) => {
    for (let i = 0; i + 1 < items.length; i += 2) dict[items[i]] = items[i + 1];
  };
  const top = () => stack[stack.length - 1];
  const last = (count) => stack.splice(stack.length - count);
  const marked = () => stack.splice(marks.pop());
  const put = (index) => memo[index] = top();
  const kOpcodes = {
    '(': () => marks.push(stack.length),
    't': () => stack.push(marked()),
    ')': () => stack.push([]),
    '\x85': () => stack.push(last(1)),
    '\x86': () => stack.push(last(2)),
    '\x87': () => stack.push(last(3)),
    ']': () => stack.push([]),
    'a': () => {
      const [value] = last(1);
      top().push(value);
    },
    'e': () => {
      const values = marked();
      for (const value of values) top().push(value);
    },
    '}': () => stack.push(Object.create(null)),
    's': () => {
      const items = last(2);
      set(top(), items);
    },
    'u': () => {
      const items = marked();
      set(top(), items);
    },
    'N': () => stack.push(null),
    '\x88': () => stack.push(true),
    '\x89': () => stack.push(false),
    'J': () => stack.push(number(4) | 0),
    'K': () => stack.push(number(1)),
    'M': () => stack.push(number(2)),
    '\x8a': () => stack.push(long(number(1))),
    'G': () => {
      stack.push(view.getFloat64(at));
      at += 8;
    },
    'X': () => stack.push(text(4)),
    '\x8c': () => stack.push(text(1)),
    '\x8d': () => stack.push(text(8)),
    'q': () => put(number(1)),
    'r': () => put(number(4)),
    '\x94': () => put(memo.length),
    'h': () => stack.push(memo[number(1)]),
    'j': () => stack.push(memo[number(4)]),
    '\x80': () => number(1),
    '\x95': () => number(8),
  };
  const table = Array.from({length: 256}, (_, code) => kOpcodes[String.fromCharCode(code)]);
  try {
    for (;;) {
      const code = view.getUint8(at++);
      if (code === 0x2e) return top();
      if (table[code] === undefined)
        throw new Error(`byte ${formatCount(at - 1)} may run code: write it with _dump_snapshot()`);
      table[code]();
    }
  } catch (error) {
    if (error instanceof RangeError || error instanceof TypeError)
      throw new Error(`it is cut off or damaged at byte ${formatCount(at)}`);
    throw error;
  }
}

// What happened to blocks, in order, as the arrays that a Recording has.
class Builder {
  constructor() {
    Object.assign(this, {
      blocks: [], step: [], time: [], live: new Map(), streams: [], now: 0, reserved: [], marks: [], failed: null,
      addresses: [], frames: [], frameNumbers: new Map(), stacks: [[]], stackNumbers: new Map([['', 0]]), hasTimes: true,
    });
  }

  allocate(id, bytes, stream, frames = [], early = false) {
    this.free(id);
    if (bytes === 0) return;
    this.live.set(id, this.blocks.length);
    this.step.push(0);
    this.#tick(early);
    const at = d3.bisectLeft(this.addresses, id);
    const under = at === 0 ? -1 : this.live.get(this.addresses[at - 1]);
    this.addresses.splice(at, 0, id);
    const rounded = Math.ceil(bytes / kGrainBytes) * kGrainBytes;
    this.blocks.push({
      address: id, bytes: rounded, slack: rounded - bytes, early, under, stream: this.#stream(`${stream}`),
      stack: this.stack(frames)
    });
  }

  free(id) {
    const block = this.live.get(id);
    if (block === undefined) return;
    this.live.delete(id);
    this.addresses.splice(d3.bisectLeft(this.addresses, id), 1);
    this.step.push(this.blocks.length - block);
    this.#tick(false);
  }

  #tick(early) {
    if (!this.hasTimes && !early) ++this.now;
    this.time.push(this.now);
  }
  #stream(id) {
    if (!this.streams.includes(id)) this.streams.push(id);
    return this.streams.indexOf(id);
  }

  stack(frames) {
    const numbers = frames.map(({name, filename, line}) => {
      const file = filename === '??' ? '' : filename.split(/[\\/]/).slice(-3).join('/');
      const key = `${name}\n${filename}\n${line}`;
      if (!this.frameNumbers.has(key)) {
        this.frameNumbers.set(key, this.frames.length);
        this.frames.push([name, file, line, filename.replaceAll('\\', '/')]);
      }
      return this.frameNumbers.get(key);
    });
    const key = numbers.join(' ');
    if (!this.stackNumbers.has(key)) {
      this.stackNumbers.set(key, this.stacks.length);
      this.stacks.push(numbers);
    }
    return this.stackNumbers.get(key);
  }

  // The program's own calls of a stack, and which of them names it: tools/look/stack_calls.h does more.
  #calls(stack) {
    const python = stack.filter((frame) => /\.py$|^</.test(this.frames[frame][3]));
    const own = python.filter(
        (frame) => !/-packages\/torch\/|\/lib\/python3[^/]*\/(?!site-)|^<frozen/.test(this.frames[frame][3]));
    const calls = own.length > 0 ? own : python.length > 0 ? python : stack;
    return {calls, named: Math.max(0, calls.findIndex((frame) => !/-packages\//.test(this.frames[frame][3])))};
  }

  recording(source, program) {
    const r = Object.create(Recording.prototype);
    const {blocks} = this;
    const column = (of, as = Float64Array) => as.from(blocks, of);
    // Stacks that differ only in frames that nobody wants to read are one.
    const known = new Map();
    const calls = [];
    const callsOfStack = this.stacks.map((stack) => {
      const one = this.#calls(stack);
      const key = one.calls.join(' ');
      if (!known.has(key)) known.set(key, calls.push(one) - 1);
      return known.get(key);
    });
    const none = new Float64Array(0);
    Object.assign(r, {
      source, program, device: '', deviceBytes: 0, duration: Math.max(this.now, this.time.at(-1) ?? 0),
      events: this.step.length, dropped: 0, damage: '', streams: this.streams, pools: [],
      heaps: this.streams.map((_, i) => [i, i, 0]), frames: this.frames.map((frame) => frame.slice(0, 3)),
      stacks: calls.map((each) => each.calls), naming: calls.map(({named}) => ({named, via: ''})),
      wholeStacks: this.stacks, callsOfStack, purposeOfStack: [],
      marks: this.marks, count: blocks.length, address: column((b) => b.address), bytes: column((b) => b.bytes),
      heap: column((b) => b.stream, Uint32Array), stream: column((b) => b.stream, Uint32Array),
      pool: new Uint32Array(blocks.length), wholeStack: column((b) => b.stack, Uint32Array),
      stack: column((b) => callsOfStack[b.stack], Uint32Array), flags: column((b) => b.early ? 1 : 0, Uint8Array),
      initialSteps: blocks.filter((b) => b.early).length, slack: column((b) => b.slack),
      under: column((b) => b.under, Int32Array), reusedBy: new Int32Array(blocks.length).fill(-1),
      firstFence: new Uint32Array(blocks.length + 1), fenceStream: none, fenceAfter: none,
      reservedTime: Float64Array.from(this.reserved, ([time]) => time),
      reservedBytes: Float64Array.from(this.reserved, ([, bytes]) => bytes),
      pageEvents: {
        count: 0, kind: none, time: none, step: none, page: none, heap: none, address: none, bytes: none, further: none
      },
      hostWaits: [], happenings: [], waits: {time: none, stream: none, other: none},
      otherPeakReserved: 0, otherTime: none, otherBytes: none, heapOfId: new Map(this.streams.map((_, i) => [i, i])),
      origin: {has_times: this.hasTimes, devices: '', verdict: ['', '', ''], advice: []},
    });
    r.setSteps(
        Float64Array.from(this.time, (time, i) => time - (i === 0 ? 0 : this.time[i - 1])), Int32Array.from(this.step));
    if (this.failed !== null) {
      const {bytes, stack, free, time} = this.failed;
      const [call] = callsOf(r, callsOfStack[stack]);
      r.origin.failure = this.failed;
      r.origin.verdict[0] = `Out of memory: a request of ${formatBytes(bytes)} failed${
          call === undefined ? '' : ` in ${callText(call)}`}${
          free === undefined ? '' : `, with ${formatBytes(free)} free on the device`}.`;
      r.happenings.push({time, text: `out of memory: ${formatBytes(bytes)} asked for`, grave: true});
    }
    return r;
  }
}

const isCount = (value) => Number.isInteger(value) && value >= 0;

// Gives each size and time that is no count the value that the command gives it (pytorch_memory.h).
// Returns where they were, as {device, path}.
function repair({device_traces: traces, segments}) {
  const unread = [];
  segments.forEach((segment, i) => {
    const device = segment.device = isCount(segment.device) ? segment.device : 0;
    const miss = (path) => unread.push({device, path: `segments[${i}].${path}`});
    const blocks = segment.blocks = Array.isArray(segment.blocks) ? segment.blocks : [];
    if (blocks.length === 0) miss('blocks');
    let at = segment.address;
    blocks.forEach((block, j) => {
      at = block.address ?? at;
      if (!isCount(block.size)) {
        miss(`blocks[${j}].size`);
        const end = j + 1 < blocks.length ? blocks[j + 1].address : segment.address + segment.total_size;
        block.size = Math.max(0, end - at || 0);
      }
      if (typeof block.state !== 'string' || block.state === '') {
        miss(`blocks[${j}].state`);
        block.state = '';
      }
      at += block.size;
    });
    if (isCount(segment.total_size)) return;
    miss('total_size');
    segment.total_size = at - segment.address;
  });
  traces.forEach((events, device) => events.forEach((event, i) => {
    for (const field of ['size', 'time_us']) {
      if (isCount(event[field])) continue;
      const mayLack = field === 'time_us' || event.action === 'snapshot';
      if (!mayLack || (event[field] ?? null) !== null)
        unread.push({device, path: `device_traces[${device}][${i}].${field}`});
      event[field] = 0;
    }
  }));
  return unread;
}

// The device that ran out of memory, else the one that holds most.
function deviceOf({device_traces: traces, segments}) {
  const held = traces.map((_, i) => d3.sum(segments.filter(({device}) => (device ?? 0) === i), (s) => s.total_size));
  const failed = traces.map((events) => events.some(({action}) => action === 'oom') ? 1 : 0);
  return d3.scan(d3.range(traces.length), (i, j) => failed[j] - failed[i] || held[j] - held[i] ||
      traces[j].length - traces[i].length);
}

function ofSnapshot(snapshot, source) {
  if (!Array.isArray(snapshot?.device_traces) || !Array.isArray(snapshot.segments))
    throw new Error('no memory snapshot of PyTorch\'s: it has no device_traces and segments');
  const allUnread = repair(snapshot);
  // Segments may be of more devices than have a history.
  const devices = 1 + (d3.max(snapshot.segments, (segment) => segment.device ?? 0) ?? -1);
  if (devices > kMostDevices) throw new Error(`a segment of device ${devices - 1}: more than are read`);
  while (snapshot.device_traces.length < devices) snapshot.device_traces.push([]);
  const device = deviceOf(snapshot) ?? 0;
  const unread = allUnread.filter((value) => value.device === device);
  const events = snapshot.device_traces[device];
  const segments = snapshot.segments.filter((segment) => (segment.device ?? 0) === device);
  const builder = new Builder();
  builder.hasTimes = events.some(({time_us: time}) => time > 0);
  // What is freed before it is allocated was there; and what lives on at the end without a word of it.
  const seen = new Set();
  const early = [];
  for (const {action, addr, size, stream} of events) {
    if (!/^(alloc|free)/.test(action)) continue;
    if (action !== 'alloc' && !seen.has(addr)) early.push([addr, size, stream, []]);
    seen.add(addr);
  }
  for (const {address, stream, blocks} of segments) {
    let at = address;
    for (const {address: own, size, requested_size: asked, state, frames, history} of blocks) {
      const place = own ?? at;
      at = place + size;
      if (!state.startsWith('active') || seen.has(place)) continue;
      const [was] = history ?? [];
      early.push([place, was?.real_size ?? (isCount(asked) && asked > 0 ? asked : size), stream, frames ?? was?.frames ?? []]);
    }
  }
  early.sort((a, b) => a[0] - b[0]);
  for (const [address, bytes, stream, frames] of early) builder.allocate(address, bytes, stream ?? 0, frames, true);
  const change = ({action, size}) => /^segment_(alloc|map)$/.test(action) ? size :
      /^segment_(free|unmap)$/.test(action)                               ? -size :
                                                                            0;
  let held = d3.sum(segments, (segment) => segment.total_size) - d3.sum(events, change);
  // Else segments of the device are missing.
  const isHeldKnown = held >= 0 || (unread.length > 0 && segments.length > 0);
  held = Math.max(held, 0);
  if (isHeldKnown) builder.reserved.push([0, held]);
  for (const event of events) {
    const {action, addr, size, stream, frames, time_us: time, device_free: free} = event;
    if (builder.hasTimes) builder.now = Math.max(builder.now, (time - events[0].time_us) * 1000);
    if (action === 'alloc') builder.allocate(addr, size, stream ?? 0, frames);
    if (action.startsWith('free')) builder.free(addr);
    if (change(event) !== 0 && isHeldKnown) builder.reserved.push([builder.now, held += change(event)]);
    if (action === 'oom')
      builder.failed = {
        bytes: size, time: builder.now, step: builder.step.length - 1, stack: builder.stack(frames ?? []),
        free: isCount(free) ? free : undefined
      };
  }
  const all = snapshot.device_traces.length;
  const recording = builder.recording(source, 'PyTorch memory snapshot');
  if (!isHeldKnown)
    recording.origin.verdict[3] = `The file lacks segments of device ${device}: what PyTorch held is not known.`;
  if (unread.length > 0)
    recording.damage = `${plural(unread.length, 'value')} can't be read${
        unread.length > 1 ? ', the first' : ''}: ${unread[0].path}`;
  if (all > 1) recording.origin.devices = `device ${device} of ${all}`;
  return recording;
}

function ofTrace(text, source) {
  const builder = new Builder();
  let first;
  for (const line of text.split('\n')) {
    const [kind, id, bytes, stream, time] = line.split(' ');
    if (line.startsWith('m ')) builder.marks.push({time: builder.now, text: line.slice(2)});
    if (!/^[arf]$/.test(kind) || time === undefined) continue;
    first ??= Number(time);
    builder.now = (Number(time) - first) * 1000;
    if (kind === 'a') builder.allocate(Number(id), Number(bytes), stream);
    else builder.free(Number(id));
  }
  if (builder.blocks.length === 0) throw new Error('neither a snapshot of PyTorch\'s nor a trace');
  return builder.recording(source, '');
}

// Errors: an Error whose message says what is wrong with the file.
async function readDropped(file) {
  if (file.size > kLargest) throw new Error(`too large for a browser: weir look ${file.name} reads it`);
  let blob = file;
  const magic = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  if (magic[0] === 0x1f && magic[1] === 0x8b)
    blob = await new Response(file.stream().pipeThrough(new DecompressionStream('gzip'))).blob();
  const bytes = new Uint8Array(await blob.arrayBuffer());
  if (bytes[0] === 0x80) return ofSnapshot(unpickled(bytes), file.name);
  if (bytes[0] === 0x89) throw new Error(`a recording of Weir's: weir look ${file.name} reads it`);
  const text = new TextDecoder().decode(bytes);
  return text.trimStart().startsWith('{') ? ofSnapshot(JSON.parse(text), file.name) : ofTrace(text, file.name);
}
