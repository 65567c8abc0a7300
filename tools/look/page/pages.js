// SPDX-License-Identifier: Apache-2.0
// Which pages there are at a moment, where they are mapped, and which of their bytes are in use.

const kPageEvent = {
  create: 0,
  release: 1,
  map: 2,
  unmap: 3,
  lease: 4,
  unlease: 5,
  keep: 6
};

// `moment`: {step, time}; several steps may happen at one time. By id: {id, bytes, heap (index; -1:
// idle), lastHeap (id; of the latest event about it), lender (the pool whose scratch it is; 0: none),
// mappings: [address], used: [{from, bytes, block}]}.
function pagesAt(recording, moment) {
  const {count, kind, time, step, page, heap, address, bytes, further} = recording.pageEvents;
  const pages = new Map();
  for (let i = 0; i < count; ++i) {
    if (step[i] > moment.step && (step[i] > moment.step + 1 || time[i] > moment.time)) break;
    const id = page[i];
    if (kind[i] === kPageEvent.create) {
      pages.set(id, {id, bytes: bytes[i], heap: -1, lastHeap: -1, lender: heap[i], mappings: [], used: []});
      continue;
    }
    for (let n = 0; n <= further[i]; ++n) {
      const one = pages.get(id + n);
      if (one === undefined) continue;  // what was dropped
      if ([kPageEvent.map, kPageEvent.lease, kPageEvent.unlease].includes(kind[i])) one.lastHeap = heap[i];
      if (kind[i] === kPageEvent.release) pages.delete(id);
      if (kind[i] === kPageEvent.map) one.mappings.push(address[i]);
      if (kind[i] === kPageEvent.unmap) one.mappings = one.mappings.filter((a) => a !== address[i]);
      if (kind[i] === kPageEvent.lease) one.heap = recording.heapOfId.get(heap[i]) ?? -1;
      if (kind[i] === kPageEvent.unlease) one.heap = -1;
      if (kind[i] === kPageEvent.keep) one.lender = 0;
    }
  }
  const all = [...pages.values()].sort((a, b) => a.id - b.id);
  findUsed(recording, moment.step, all);
  return all;
}

// A block lies on every page that is mapped at some of its addresses.
function findUsed(recording, step, pages) {
  const mappings = pages.flatMap((page) => page.mappings.map((address) => ({address, page})));
  mappings.sort((a, b) => a.address - b.address);
  const ends = mappings.map(({address, page}) => address + page.bytes);
  const {count, beginStep, endStep, address, bytes} = recording;
  for (let block = 0; block < count; ++block) {
    if (beginStep[block] > step || endStep[block] <= step) continue;
    const last = address[block] + bytes[block];
    for (let i = d3.bisectRight(ends, address[block]);
         i < mappings.length && mappings[i].address < last; ++i) {
      const from = Math.max(address[block], mappings[i].address);
      const length = Math.min(last, ends[i]) - from;
      mappings[i].page.used.push({from: from - mappings[i].address, bytes: length, block});
    }
  }
}
