// The data of the page: unpacks the columns that prun wrote, and formats values as text.
'use strict';

const KINDS = ['forward', 'backward', 'weight', 'recompute', 'gather', 'gradient', 'activation', 'message',
  'optimizer', 'other'];
const KIND_NAMES = ['forward', 'backward', 'weight gradient', 'recomputation', 'all-gather', 'gradient reduction',
  'activation collective', 'send and receive', 'optimizer', 'other'];
const FAN = 4;  // boxes of one level per box of the next

// Returns the column of a run-length encoding: value, count, value, count.
function unrolled(pairs, n) {
  const column = new Int32Array(n);
  for (let p = 0, at = 0; p < pairs.length; p += 2) column.fill(pairs[p], at, at += pairs[p + 1]);
  return column;
}

// Columns are delta-encoded, which is short as text: begin relative to the previous begin, the others to begin.
function unpack(raw) {
  const n = raw.boxes.begin.length;
  const column = () => new Float64Array(n);
  const boxes = {...raw.boxes, count: n, begin: column(), ready: column(), arrived: column(), end: column(),
    lane: new Int32Array(n)};
  for (const name of ['unit', 'phase', 'group', 'micro', 'step']) boxes[name] = unrolled(raw.boxes[name], n);
  let begin = 0;
  for (let i = 0; i < n; i++) {
    begin += raw.boxes.begin[i];
    boxes.begin[i] = begin;
    boxes.ready[i] = begin - raw.boxes.ready[i];
    boxes.arrived[i] = begin + raw.boxes.arrived[i];
    boxes.end[i] = begin + raw.boxes.end[i];
  }
  raw.lanes.forEach((lane, l) => {
    const end = l + 1 < raw.lanes.length ? raw.lanes[l + 1].first : n;
    lane.end = end;
    for (let i = lane.first; i < end; i++) boxes.lane[i] = l;
  });
  const timeline = {...raw, boxes};
  timeline.lanes.forEach(lane => { lane.levels = levelsOf(timeline, lane); });
  timeline.groupOf = new Int32Array(n);
  raw.groups.forEach((group, g) => timeline.groupOf.fill(g, group[0], group[0] + group[1]));
  timeline.onPath = new Uint8Array(n);
  for (const i of raw.critical) timeline.onPath[i] = 1;
  timeline.into = null;
  return timeline;
}

// Returns the levels of detail of a lane: groups of 4 boxes, then of 16, with begin, end and the kind of most time.
function levelsOf(timeline, lane) {
  const {boxes} = timeline;
  const levels = [];
  let below = null, count = lane.end - lane.first;
  while (count > FAN) {
    const size = Math.ceil(count / FAN);
    const level = {begin: new Float64Array(size), end: new Float64Array(size), kind: new Uint8Array(size), count: size};
    const time = new Float64Array(KINDS.length);
    for (let g = 0; g < size; g++) {
      time.fill(0);
      const from = g * FAN, to = Math.min(count, from + FAN);
      for (let i = from; i < to; i++) {
        const at = below ? i : lane.first + i;
        const of = below || boxes;
        time[of.kind[at]] += of.end[at] - of.begin[at];
        if (i === from) level.begin[g] = of.begin[at];
        level.end[g] = of.end[at];
      }
      level.kind[g] = time.indexOf(Math.max(...time));
    }
    levels.push(level);
    below = level;
    count = size;
  }
  return levels;
}

// Indexes arrows by their target and source boxes, at the first call.
function arrowsOf(timeline) {
  if (timeline.into) return timeline;
  timeline.into = new Map();
  timeline.from = new Map();
  const add = (map, key, value) => {
    const list = map.get(key);
    if (list) list.push(value); else map.set(key, [value]);
  };
  for (let i = 0; i < timeline.arrows.length; i += 3) {
    add(timeline.into, timeline.arrows[i + 1], i);
    add(timeline.from, timeline.arrows[i], i);
  }
  return timeline;
}

// Returns the first box of a lane that ends after `time`.
function firstAfter(timeline, lane, time) {
  let low = lane.first, high = lane.end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (timeline.boxes.end[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

function shortNumber(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toFixed(digits).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '');
}

// Formats a duration or a moment. Schedules with unit costs use forwards of a microbatch (F).
function timeText(timeline, ns) {
  if (timeline.unit_ns > 0) return `${shortNumber(ns / timeline.unit_ns)} F`;
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${shortNumber(ns / 1e3)} µs`;
  if (ns < 1e9) return `${shortNumber(ns / 1e6)} ms`;
  return `${shortNumber(ns / 1e9)} s`;
}

function bytesText(bytes) {
  let at = 0;
  while (bytes >= 1024 && at < 5) { bytes /= 1024; at++; }
  return `${shortNumber(bytes)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][at]}`;
}

function percentText(part) { return `${shortNumber(part * 100)} %`; }

// Returns the description of a box as lines of text.
function boxLines(timeline, i) {
  const {boxes, texts, lanes} = timeline;
  const lane = lanes[boxes.lane[i]];
  const waitsForEdges = boxes.begin[i] - boxes.ready[i], waitsForRanks = boxes.arrived[i] - boxes.begin[i];
  const facts = [texts[boxes.phase[i]]];
  if (boxes.micro[i] >= 0) facts.push(`microbatch ${boxes.micro[i]}`);
  facts.push(`step ${boxes.step[i] + 1}`);
  const lines = [
    texts[boxes.name[i]],
    `${lane.who}, ${lane.name}; ${KIND_NAMES[boxes.kind[i]]}`,
    facts.join(', '),
    `${timeText(timeline, boxes.end[i] - boxes.begin[i])} from ${timeText(timeline, boxes.begin[i])}`,
  ];
  if (waitsForEdges > 0) lines.push(`${timeText(timeline, waitsForEdges)} of waiting for other streams before it`);
  if (waitsForRanks > 0) lines.push(`${timeText(timeline, waitsForRanks)} of it waiting for other ranks`);
  const axis = texts[boxes.group[i]];
  if (boxes.bytes[i] > 0) lines.push(`${bytesText(boxes.bytes[i])} read and written${axis ? `, over ${axis}` : ''}`);
  if (texts[boxes.site[i]]) lines.push(texts[boxes.site[i]]);
  if (timeline.onPath[i]) lines.push('on the critical path');
  return lines;
}
