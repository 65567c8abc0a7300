// SPDX-License-Identifier: Apache-2.0
// What is live and what is held at one moment: the figures of the panel. docs/report.md defines them,
// and `weir report` counts the same.

// [key, why], in the order of `weir report`.
const kCauses = [
  ['rounding', 'blocks are multiples of 512 bytes'],
  ['page_tails', 'free at the ends of pages in use'],
  ['placement', 'free between two blocks of a page'],
  ['stream_partition', 'pages held by a stream with no block on them'],
  ['pool_partition', 'idle pages that graph pools keep'],
  ['idle_pages', 'idle pages, free for every stream'],
];

function liveBlocks({count, beginStep, endStep}, step) {
  const blocks = [];
  for (let b = 0; b < count; ++b)
    if (beginStep[b] <= step && endStep[b] > step) blocks.push(b);
  return blocks;
}

// The lowest moment before `step` since live was last a tenth of its value higher than there; the
// recording's first moment if there was none. As a step; -1: before all of them.
function troughBefore(selection, step) {
  const first = selection.recording.initialSteps - 1;
  const {live} = selection;
  const rise = selection.liveAfter(step) / 10;
  let low = step;
  let least = selection.liveAfter(step);
  for (let i = step - 1; i >= first; --i) {
    const bytes = i < 0 ? 0 : live[i];
    if (bytes < least) {
      low = i;
      least = bytes;
    }
    if (bytes - least >= rise) break;
  }
  return low;
}

// Blocks that have `keyOf` in common, as {key, blocks, bytes, fresh}, those with the most bytes
// first. `fresh`: bytes of the blocks that began after step `since`.
function groupsOf(recording, blocks, keyOf, since) {
  const groups = new Map();
  for (const block of blocks) {
    const key = keyOf(block);
    let group = groups.get(key);
    if (group === undefined) groups.set(key, group = {key, blocks: [], bytes: 0, fresh: 0});
    group.blocks.push(block);
    group.bytes += recording.bytes[block];
    if (recording.beginStep[block] > since) group.fresh += recording.bytes[block];
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes || a.blocks[0] - b.blocks[0]);
}

// By key of kCauses: bytes that are reserved and that no block asked for. `pages`: of pagesAt().
function causesOf(recording, blocks, pages) {
  const causes = Object.fromEntries(kCauses.map(([key]) => [key, 0]));
  causes.rounding = d3.sum(blocks, (b) => recording.slack[b]);
  for (const page of pages) {
    if (page.used.length === 0) {
      const pooled = recording.heaps[recording.heapOfId.get(page.lastHeap)]?.[2] > 0;
      const why = page.heap >= 0 ? 'stream_partition' : pooled ? 'pool_partition' : 'idle_pages';
      causes[why] += page.bytes;
      continue;
    }
    const parts = page.used.slice().sort((a, b) => a.from - b.from);
    let reached = parts[0].from;
    causes.page_tails += reached;
    for (const {from, bytes} of parts) {
      causes.placement += Math.max(0, from - reached);
      reached = Math.max(reached, from + bytes);
    }
    causes.page_tails += Math.max(0, page.bytes - reached);
  }
  return causes;
}

// Of the calls that led to `stacks`, how many of the outermost are of the same functions.
function commonCallers(recording, stacks) {
  const functions = stacks.map(
      (stack) => recording.stacks[stack].map((frame) => recording.frames[frame].slice(0, 2).join('\n')).reverse());
  const shortest = d3.min(functions, ({length}) => length) ?? 0;
  let count = 0;  // the innermost call is no caller
  while (count + 1 < shortest && functions.every((each) => each[count] === functions[0][count])) ++count;
  return count;
}

// The innermost caller that at least half of `live` was allocated under, though not all of it was:
// {name, bytes, groups}, or null. `groups`: by stack; those with the most bytes first.
function hotFunction(recording, groups, live) {
  let within = groups;
  let hot = null;
  for (let depth = commonCallers(recording, groups.map(({key}) => key));; ++depth) {
    const sums = new Map();
    for (const group of within) {
      const frames = recording.stacks[group.key];
      if (frames.length <= depth + 1) continue;  // the innermost call is no caller
      const [name, file] = recording.frames[frames[frames.length - 1 - depth]];
      const key = `${name}\n${file}`;
      if (!sums.has(key)) sums.set(key, {name: shortName(name), bytes: 0, groups: []});
      const sum = sums.get(key);
      sum.bytes += group.bytes;
      sum.groups.push(group);
    }
    const most = [...sums.values()].find(({bytes}) => bytes >= live / 2);
    if (most === undefined) return hot;
    hot = most;
    within = most.groups;
  }
}

// `all`: the selection of all blocks. `pages`: those of the moment.
function figuresAt(all, step, pages) {
  const {recording: r} = all;
  const blocks = liveBlocks(r, step);
  const trough = r.isMoment ? step : troughBefore(all, step);
  const by = (keyOf) => groupsOf(r, blocks, keyOf, trough);
  const gone = trough === step ? [] : liveBlocks(r, trough).filter((b) => r.endStep[b] <= step);
  const came = blocks.filter((b) => r.beginStep[b] > trough);
  return {
    blocks,
    trough,
    live: all.liveAfter(step),
    reserved: d3.sum(pages, (page) => page.bytes),
    byBlock: by((b) => `${r.bytes[b]} ${r.heap[b]}`),
    byStack: r.hasStacks ? by((b) => r.stack[b]) : null,
    byPurpose: r.hasPurposes ? by((b) => r.purposeOf(b)) : null,
    bySize: by((b) => sizeClass(r.bytes[b])),
    byStream: by((b) => r.stream[b]),
    byPool: by((b) => r.pool[b]),
    causes: causesOf(r, blocks, pages),
    came: {count: came.length, bytes: d3.sum(came, (b) => r.bytes[b])},
    gone: {count: gone.length, bytes: d3.sum(gone, (b) => r.bytes[b])},
  };
}
