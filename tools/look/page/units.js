// SPDX-License-Identifier: Apache-2.0
// Numbers for people, and back.

const kUnits = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

// Three digits or more: "512 B", "1.50 MiB", "12.3 GiB", "1,023 MiB".
function formatBytes(bytes) {
  let unit = 0;
  let value = Math.abs(bytes);
  while (value >= 1024 && unit < kUnits.length - 1) {
    value /= 1024;
    ++unit;
  }
  return `${bytes < 0 ? '-' : ''}${unit === 0 ? formatCount(value) : formatDigits(value)} ${kUnits[unit]}`;
}

// "4096", "4 KiB", "1.5mib", "2g" in bytes; null if it is no size.
function parseBytes(text) {
  const match = /^\s*(\d+(?:\.\d*)?)\s*(?:([kmgtp]?)(?:i?b)?)\s*$/i.exec(text);
  if (match === null) return null;
  return Number(match[1]) * 1024 ** ' kmgtp'.indexOf((match[2] || ' ').toLowerCase());
}

// To make a format takes longer than to use it.
const kCountFormats = d3.range(21).map(
    (digits) => new Intl.NumberFormat('en', {minimumFractionDigits: digits, maximumFractionDigits: digits}));
function formatCount(value, digits = 0) {
  return kCountFormats[digits].format(value);
}
// With three digits or more.
function formatDigits(value) {
  const size = Math.abs(value);
  return formatCount(value, Number.isInteger(value) || size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

// How many of `values`, which rise, are `limit` or less; how many are less. As d3.bisectRight and
// d3.bisectLeft, which call a function for each comparison.
function countUpTo(values, limit) {
  let low = 0;
  for (let high = values.length; low < high;) {
    const middle = (low + high) >>> 1;
    if (values[middle] <= limit) low = middle + 1; else high = middle;
  }
  return low;
}
function countBelow(values, limit) {
  let low = 0;
  for (let high = values.length; low < high;) {
    const middle = (low + high) >>> 1;
    if (values[middle] < limit) low = middle + 1; else high = middle;
  }
  return low;
}

const kTimeUnits = [['s', 1e9], ['ms', 1e6], ['µs', 1e3], ['ns', 1]];

// Of files without times, "times" are numbers of events: then the page has no other unit.
let countsEvents = false;
function countEvents() {
  countsEvents = true;
}

// A length of time in ns, with three digits or more.
function formatDuration(ns) {
  if (countsEvents) return plural(ns, 'event');
  const [unit, size] = kTimeUnits.find(([, each]) => Math.abs(ns) >= each) || kTimeUnits[3];
  return `${formatDigits(ns / size)} ${unit}`;
}

// A point in time, in ns since the beginning, such that neighbours `step` ns apart differ; in the
// unit that suits `like`.
function formatTime(ns, step = 1e3, like = ns) {
  if (countsEvents) return `event ${formatCount(ns)}`;
  const [unit, size] =
      kTimeUnits.find(([, each]) => Math.max(Math.abs(like), step) >= each) || kTimeUnits[3];
  const digits = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9));
  return `${formatCount(ns / size, Math.min(digits, 9))} ${unit}`;
}

// A captured stream has its own id with the highest of 64 bits set. Bit 61 alone names all streams.
function formatStream(id) {
  if (BigInt(id) === 1n << 61n) return 'all streams';
  const captured = BigInt(id) >> 63n === 1n;
  return captured ? `stream ${BigInt(id) - (1n << 63n)}, captured` : `stream ${id}`;
}

function formatAddress(address) {
  return `0x${address.toString(16)}`;
}

// A share of a whole, in percent with three digits: "71.5 %".
function formatShare(share) {
  if (!Number.isFinite(share)) return '-';
  const percent = 100 * share;
  if (percent > 0 && percent < 0.01) return '<0.01 %';
  return `${formatCount(percent, percent >= 99.95 ? 0 : percent >= 10 ? 1 : 2)} %`;
}

// "src/model.cc:44" without its folders.
function baseName(place) {
  return place.slice(Math.max(place.lastIndexOf('/'), place.lastIndexOf('\\')) + 1);
}

// A C++ function without its arguments and without unnamed namespaces.
function shortName(name) {
  const text = name.replaceAll('(anonymous namespace)::', '');
  const from = text.indexOf('operator()') < 0 ? 0 : text.indexOf('operator()') + 'operator()'.length;
  const arguments_ = text.indexOf('(', from);
  return arguments_ > 0 ? text.slice(0, arguments_) : text;
}

function plural(count, thing) {
  return `${formatCount(count)} ${thing}${count === 1 ? '' : 's'}`;
}
