// SPDX-License-Identifier: Apache-2.0
// Which blocks are shown, and which are found.

// `filter`: {stream, pool (ids; null: any; pool "" is none), least, most (bytes)}. Null: all match.
function matchesOf(recording, {stream, pool, least, most}) {
  if (stream === null && pool === null && least === null && most === null) return null;
  const streamIndex = recording.streams.indexOf(stream);
  const poolIndex = pool === '' ? 0 : recording.pools.indexOf(pool) + 1;
  const poolIsThere = pool === '' || poolIndex > 0;
  return Uint8Array.from({length: recording.count}, (_, block) => {
    if (stream !== null && recording.stream[block] !== streamIndex) return 0;
    if (pool !== null && (!poolIsThere || recording.pool[block] !== poolIndex)) return 0;
    const bytes = recording.bytes[block];
    return bytes >= (least ?? 0) && bytes <= (most ?? Infinity) ? 1 : 0;
  });
}

// By block, 1 where its stack has the text (in any case of letters), or its bytes the address, or
// its number is that (#12). Null: nothing is looked for.
function foundOf(recording, text) {
  const wanted = text.trim().toLowerCase();
  if (wanted === '') return null;
  const {bytes, count} = recording;
  if (/^#\d+$/.test(wanted)) {
    return Uint8Array.from(
        {length: count}, (_, block) => block === Number(wanted.slice(1)) ? 1 : 0);
  }
  if (/^0x[0-9a-f]+$/.test(wanted)) {
    const place = Number(wanted);
    return Uint8Array.from(
        {length: count},
        (_, block) => {
          const first = recording.addressOf(block);
          return place >= first && place < first + bytes[block] ? 1 : 0;
        });
  }
  const frames = recording.frames.map(
      (_, frame) =>
          Object.values(recording.frameText(frame)).join(' ').toLowerCase().includes(wanted));
  const has = (stack) => stack.some((frame) => frames[frame]) ? 1 : 0;
  const [calls, whole] = [recording.stacks.map(has), recording.wholeStacks.map(has)];
  return Uint8Array.from(recording.stack, (stack, block) => calls[stack] | whole[recording.wholeStack[block]]);
}
