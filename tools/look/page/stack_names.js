// SPDX-License-Identifier: Apache-2.0
// What stacks are called: in short, and so that those that are named together are told apart.

// What PyTorch calls between a module's call and its forward().
const kBetweenCalls = /^(Module\.)?_(wrapped_)?call_impl$/;

// The call that names the stack and its callers, innermost first, as {name, place, via}; without the
// `outer` outermost ones. `via`: what the first one called to allocate.
function callsOf(recording, stack, outer = 0) {
  const {named, via} = recording.naming[stack];
  const frames = recording.stacks[stack];
  return recording.frameTexts(frames.slice(named, Math.max(named + 1, frames.length - outer)))
      .map(({name, place}, i) => ({name: shortName(name), place: baseName(place), via: i === 0 ? via : ''}))
      .filter(({name}, i) => i === 0 || !kBetweenCalls.test(name));
}

function callText({name, place, via}) {
  return `${name}${place === '' ? '' : ` (${place})`}${via === '' ? '' : ` · ${via}`}`;
}

// For each of `all` (of callsOf()): function and place, or, where two have the same, the function with
// as many of its callers as tell them apart.
function stackLabels(all) {
  const labels = all.map(([first]) => first === undefined ? 'unknown' : callText(first));
  const alike = d3.nest().key((i) => labels[i]).entries(labels.map((_, i) => i));
  for (const {values} of alike) {
    if (values.length === 1) continue;
    let open = values;
    const deepest = d3.max(values, (i) => all[i].length);
    for (let depth = 2; depth <= deepest && open.length > 0; ++depth) {
      for (const withPlace of [false, true]) {
        const texts = new Map(values.map((i) => {
          const calls = all[i].slice(0, depth);
          const last = calls.pop();
          const [{via}] = all[i];
          const text = [...calls.map(({name}) => name), withPlace ? callText({...last, via: ''}) : last.name]
              .join(' ‹ ');
          return [i, via === '' ? text : `${text} · ${via}`];
        }));
        const isAlone = (i) => values.every((j) => j === i || texts.get(j) !== texts.get(i));
        for (const i of open.filter(isAlone)) labels[i] = texts.get(i);
        open = open.filter((i) => !isAlone(i));
      }
    }
  }
  return labels;
}
