// The canvas: rows of lanes and memory under one time axis. Boxes of which four fill less than 2 px are drawn as
// one (levelsOf), and runs of a unit's ops as one box until their names fit, so that the cost of a frame depends on the
// screen and not on the trace.
'use strict';

const GUTTER = 196, AXIS = 26, OVERVIEW = 30, TOP = AXIS + OVERVIEW;
const HEIGHTS = {compute: 40, other: 22, memory: 54, heading: 30, rankGap: 12};

class View {
  constructor(canvas, timelines) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d');
    this.timelines = timelines;
    this.end = Math.max(1, ...timelines.map(timeline => timeline.end));
    this.start = 0;
    this.stop = this.end;
    this.scroll = 0;
    this.chosen = null;   // {timeline, box}
    this.hovered = null;
    this.pathOnly = false;
    this.allArrows = false;
    this.kind = -1;       // the only highlighted kind; -1 = all
    this.drawn = 0;       // rectangles of the last frame
    this.rows = this.layout();
    this.readColours();
  }

  layout() {
    const rows = [];
    let y = 6;
    const put = (row, height) => { rows.push({...row, y, height}); y += height + 3; };
    for (const timeline of this.timelines) {
      if (this.timelines.length > 1) put({heading: `${timeline.name}: ${timeline.source}`}, HEIGHTS.heading);
      let rank = null;
      const strip = () => {
        const memory = timeline.memory.find(one => one.rank === rank);
        if (memory) put({timeline, memory}, HEIGHTS.memory);
      };
      timeline.lanes.forEach((lane, l) => {
        if (lane.rank !== rank) {
          if (rank !== null) { strip(); y += HEIGHTS.rankGap; }
          rank = lane.rank;
          lane.opens = true;
        }
        if (lane.end > lane.first) put({timeline, lane, l}, lane.stream === 0 ? HEIGHTS.compute : HEIGHTS.other);
      });
      if (rank !== null) strip();
      y += HEIGHTS.rankGap;
    }
    this.height = y;
    return rows;
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(`--${name}`).trim();
    this.colours = KINDS.map(colour);
    this.inks = this.colours.map(c => luminance(c) > 0.26 ? '#10151d' : '#ffffff');
    for (const name of ['paper', 'panel', 'lane', 'line', 'text', 'soft', 'accent', 'wait']) this[name] = colour(name);
    this.hatches = this.colours.map(c => hatch(this.context, c, this.paper));
    this.overview = null;
  }

  resize() {
    const width = this.canvas.parentElement.clientWidth;
    const room = Math.max(260, window.innerHeight - 330);
    this.width = width;
    this.seen = Math.min(this.height + TOP, Math.max(room, 260));
    this.canvas.style.height = `${this.seen}px`;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.seen * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.overview = null;
    this.limit();
  }

  limit() {
    const least = Math.min(this.end, 50);
    let span = Math.min(Math.max(this.stop - this.start, least), this.end * 1.04);
    this.start = Math.max(-0.02 * this.end, Math.min(this.start, this.end * 1.02 - span));
    this.stop = this.start + span;
    this.scroll = Math.max(0, Math.min(this.scroll, this.height + TOP - this.seen));
  }

  get scale() { return (this.width - GUTTER - 14) / (this.stop - this.start); }
  x(time) { return GUTTER + (time - this.start) * this.scale; }
  time(x) { return this.start + (x - GUTTER) / this.scale; }

  zoom(factor, x = GUTTER + (this.width - GUTTER) / 2) {
    const at = this.time(x), span = (this.stop - this.start) * factor;
    this.start = at - (at - this.start) * factor;
    this.stop = this.start + span;
    this.limit();
    this.redraw();
  }
  pan(part) {
    const by = (this.stop - this.start) * part;
    this.start += by;
    this.stop += by;
    this.limit();
    this.redraw();
  }
  fit() {
    this.start = -0.01 * this.end;
    this.stop = 1.01 * this.end;
    this.limit();
    this.redraw();
  }
  show(timeline, i, close) {
    const {boxes} = timeline;
    const length = boxes.end[i] - boxes.begin[i];
    if (close) {
      this.start = boxes.begin[i] - length * 2;
      this.stop = boxes.end[i] + length * 2;
    } else if (boxes.begin[i] < this.start || boxes.end[i] > this.stop) {
      const span = this.stop - this.start, middle = (boxes.begin[i] + boxes.end[i]) / 2;
      this.start = middle - span / 2;
      this.stop = middle + span / 2;
    }
    const row = this.rows.find(one => one.timeline === timeline && one.l === boxes.lane[i]);
    if (row.y < this.scroll) this.scroll = row.y - 8;
    if (row.y + row.height > this.scroll + this.seen - TOP) this.scroll = row.y + row.height - this.seen + TOP + 8;
    this.limit();
    this.redraw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const c = this.context;
    this.drawn = 0;
    c.fillStyle = this.paper;
    c.fillRect(0, 0, this.width, this.seen);
    c.save();
    c.beginPath();
    c.rect(0, TOP, this.width, this.seen - TOP);
    c.clip();
    c.translate(0, TOP - this.scroll);
    this.drawGrid();
    for (const row of this.rows) {
      if (row.y + row.height < this.scroll || row.y > this.scroll + this.seen) continue;
      if (row.heading) this.drawHeading(row);
      else if (row.memory) this.drawMemory(row);
      else this.drawLane(row);
    }
    this.drawPath();
    this.drawArrows();
    this.drawGutter();
    c.restore();
    this.drawAxis();
    this.drawOverview();
  }

  ticks() {
    const unit = this.timelines[0].unit_ns || 1;
    const rough = (this.stop - this.start) / unit / Math.max(2, (this.width - GUTTER) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough) * unit;
    const list = [];
    const last = Math.min(this.stop, this.end);
    for (let t = Math.ceil(Math.max(0, this.start) / step) * step; t <= last; t += step) list.push(t);
    return list;
  }

  drawGrid() {
    const c = this.context;
    c.fillStyle = this.line;
    c.globalAlpha = 0.5;
    for (const t of this.ticks()) c.fillRect(Math.round(this.x(t)), 0, 1, this.height);
    c.globalAlpha = 1;
  }

  drawAxis() {
    const c = this.context;
    c.fillStyle = this.paper;
    c.fillRect(0, 0, this.width, TOP);
    c.fillStyle = this.line;
    c.fillRect(0, TOP - 1, this.width, 1);
    c.font = '12px system-ui, sans-serif';
    c.textBaseline = 'middle';
    c.fillStyle = this.soft;
    for (const t of this.ticks()) {
      const x = this.x(t);
      if (x < GUTTER - 4) continue;
      const text = timeText(this.timelines[0], Math.round(t));
      c.textAlign = x + c.measureText(text).width / 2 > this.width - 4 ? 'right' : 'center';
      c.fillText(text, Math.min(x, this.width - 4), OVERVIEW + AXIS / 2);
    }
    c.textAlign = 'left';
  }

  // Draws all timelines small, with a frame around the visible part.
  drawOverview() {
    const c = this.context, width = this.width - GUTTER - 14;
    if (!this.overview) {
      this.overview = document.createElement('canvas');
      this.overview.width = Math.max(1, Math.round(width));
      this.overview.height = OVERVIEW - 10;
      const o = this.overview.getContext('2d');
      const lanes = this.rows.filter(row => row.lane);
      const height = (OVERVIEW - 10) / Math.max(1, lanes.length);
      lanes.forEach((row, r) => {
        const {timeline, lane} = row;
        const {boxes} = timeline;
        const top = lane.levels.length ? lane.levels[Math.max(0, lane.levels.length - 3)] : null;
        const [from, to, of] = top ? [0, top.count, top] : [lane.first, lane.end, boxes];
        for (let i = from; i < to; i++) {
          o.fillStyle = this.colours[of.kind[i]];
          const left = of.begin[i] / this.end * width, right = of.end[i] / this.end * width;
          o.fillRect(left, r * height, Math.max(0.7, right - left), Math.max(0.8, height - 0.4));
        }
      });
    }
    c.drawImage(this.overview, GUTTER, 5);
    const left = GUTTER + Math.max(0, this.start / this.end) * width;
    const right = GUTTER + Math.min(1, this.stop / this.end) * width;
    c.fillStyle = this.paper;
    c.globalAlpha = 0.72;
    c.fillRect(GUTTER, 5, left - GUTTER, OVERVIEW - 10);
    c.fillRect(right, 5, GUTTER + width - right, OVERVIEW - 10);
    c.globalAlpha = 1;
    c.strokeStyle = this.accent;
    c.strokeRect(left + 0.5, 4.5, Math.max(2, right - left - 1), OVERVIEW - 9);
  }

  drawGutter() {
    const c = this.context;
    c.fillStyle = this.paper;
    c.fillRect(0, 0, GUTTER - 8, this.height);
    c.textBaseline = 'middle';
    for (const row of this.rows) {
      const middle = row.y + row.height / 2;
      if (row.heading) {
        c.font = '600 13px system-ui, sans-serif';
        c.fillStyle = this.text;
        c.fillText(row.heading, 12, middle + 3);
        continue;
      }
      const name = row.memory ? 'memory' : row.lane.name;
      if (row.lane && row.lane.opens) {
        c.font = '600 13px system-ui, sans-serif';
        c.fillStyle = this.text;
        c.fillText(fitted(c, row.lane.who, 108), 12, middle);
      }
      c.font = '12px system-ui, sans-serif';
      c.fillStyle = this.soft;
      c.textAlign = 'right';
      c.fillText(fitted(c, name, row.lane && row.lane.opens ? 72 : 168), GUTTER - 16, middle - (row.memory ? 8 : 0));
      if (row.memory) c.fillText(`${bytesText(row.memory.peak)} peak`, GUTTER - 16, middle + 8);
      c.textAlign = 'left';
    }
  }

  drawHeading(row) {
    this.context.fillStyle = this.line;
    this.context.fillRect(0, row.y + row.height, this.width, 1);
  }

  drawLane(row) {
    const {timeline, lane, y, height} = row, c = this.context;
    c.fillStyle = this.lane;
    c.fillRect(GUTTER, y, this.width - GUTTER, height);
    c.font = '12px system-ui, sans-serif';
    c.textBaseline = 'middle';
    this.lastGroup = -1;
    const top = lane.levels.length - 1;
    const count = top >= 0 ? lane.levels[top].count : 0;
    if (top < 0) this.drawBoxes(row, lane.first, lane.end);
    for (let g = 0; g < count; g++) this.drawLevel(row, top, g);
    const chosen = this.chosen && this.chosen.timeline === timeline ? this.chosen.box : -1;
    if (chosen >= lane.first && chosen < lane.end) {
      c.strokeStyle = this.text;
      c.lineWidth = 2;
      const {begin, end} = timeline.boxes;
      c.strokeRect(this.x(begin[chosen]), y - 1, Math.max(2, (end[chosen] - begin[chosen]) * this.scale), height + 2);
      c.lineWidth = 1;
    }
  }

  drawLevel(row, level, g) {
    const {lane} = row;
    const of = lane.levels[level];
    if (of.end[g] < this.start || of.begin[g] > this.stop) return;
    const width = (of.end[g] - of.begin[g]) * this.scale;
    if (width < 2) {
      const size = FAN ** (level + 1), first = lane.first + g * size, last = Math.min(lane.end, first + size) - 1;
      if (this.drawGroup(row, first) && row.timeline.groupOf[last] === this.lastGroup) return;
      this.context.globalAlpha = this.strength(of.kind[g], !this.pathOnly);
      this.context.fillStyle = this.colours[of.kind[g]];
      this.context.fillRect(this.x(of.begin[g]), row.y, Math.max(0.7, width), row.height);
      this.context.globalAlpha = 1;
      this.drawn++;
      return;
    }
    const from = g * FAN;
    if (level > 0) {
      const to = Math.min(lane.levels[level - 1].count, from + FAN);
      for (let i = from; i < to; i++) this.drawLevel(row, level - 1, i);
    } else {
      this.drawBoxes(row, lane.first + from, Math.min(lane.end, lane.first + from + FAN));
    }
  }

  strength(kind, onPath) {
    if (this.kind >= 0 && this.kind !== kind) return 0.12;
    return onPath ? 1 : 0.18;
  }

  // Draws the group of a box as one, unless it is drawn already, or its ops are wide enough for their names.
  drawGroup(row, i) {
    const {timeline} = row, {boxes, groups} = timeline, g = timeline.groupOf[i];
    const [first, count, kind, label, chunk] = groups[g];
    if (g === this.lastGroup) return true;
    if (count < 2 || this.pathOnly) return false;
    const begin = boxes.begin[first], end = boxes.end[first + count - 1], width = (end - begin) * this.scale;
    if (width < 2 || width >= 15 * count) return false;
    this.lastGroup = g;
    if (end >= this.start && begin <= this.stop) this.drawBox(row, begin, begin, end, kind, label, chunk, true);
    return true;
  }

  drawBoxes(row, from, to) {
    const {timeline} = row, {boxes, groups, texts} = timeline;
    for (let i = from; i < to; i++) {
      if (this.drawGroup(row, i)) continue;
      if (boxes.end[i] < this.start || boxes.ready[i] > this.stop) continue;
      const name = texts[boxes.name[i]];
      const label = boxes.micro[i] >= 0 ? `${name} ${boxes.micro[i]}` : name;
      if (boxes.begin[i] > boxes.ready[i]) this.drawWait(row, boxes.ready[i], boxes.begin[i]);
      this.drawBox(row, boxes.begin[i], boxes.arrived[i], boxes.end[i], boxes.kind[i], label,
        groups[timeline.groupOf[i]][4], !this.pathOnly || timeline.onPath[i]);
    }
  }

  drawWait(row, begin, end) {
    const width = (end - begin) * this.scale;
    if (width < 2) return;
    this.context.fillStyle = this.wait;
    this.context.fillRect(this.x(begin), row.y + row.height / 2 - 0.75, width - 1, 1.5);
  }

  drawBox(row, begin, arrived, end, kind, label, chunk, onPath) {
    const c = this.context;
    let left = this.x(begin), width = (end - begin) * this.scale;
    if (left < GUTTER - 20) { width -= GUTTER - 20 - left; left = GUTTER - 20; }
    if (left + width > this.width + 20) width = this.width + 20 - left;
    this.drawn++;
    c.globalAlpha = this.strength(kind, onPath);
    c.fillStyle = this.colours[kind];
    const drawn = width > 3 ? width - 1 : Math.max(0.7, width);
    const waits = (arrived - begin) * this.scale;
    if (drawn > 7) {
      c.beginPath();
      c.roundRect(left, row.y + 1, drawn, row.height - 2, 3);
      c.fill();
      if (chunk > 0) {  // a later stage of the rank is lighter
        c.fillStyle = '#ffffff';
        c.globalAlpha *= 0.36;
        c.fill();
        c.globalAlpha = this.strength(kind, onPath);
      }
    } else {
      c.fillRect(left, row.y + 1, drawn, row.height - 2);
    }
    if (waits > 1.5) {
      c.fillStyle = this.hatches[kind];
      c.fillRect(left, row.y + 1, Math.min(drawn, waits), row.height - 2);
    }
    const room = drawn - Math.max(0, waits) - 8;
    if (room > 10 && label) {
      c.fillStyle = chunk > 0 ? '#10151d' : this.inks[kind];
      const text = fitted(c, label, room);
      if (text) {
        c.textAlign = 'center';
        c.fillText(text, left + Math.max(0, waits) + (drawn - Math.max(0, waits)) / 2, row.y + row.height / 2 + 0.5);
        c.textAlign = 'left';
      }
    }
    c.globalAlpha = 1;
  }

  // Underlines the critical path; adjacent boxes have one line.
  drawPath() {
    const c = this.context;
    c.fillStyle = this.text;
    for (const timeline of this.timelines) {
      const {boxes} = timeline;
      const rowOf = new Map(this.rows.filter(row => row.timeline === timeline && row.lane).map(row => [row.l, row]));
      let from = -1, to = -1, row = null;
      const flush = () => {
        if (!row || to < this.start || from > this.stop) return;
        c.fillRect(this.x(from), row.y + row.height - 2.5, Math.max(1, (to - from) * this.scale - 1), 2.5);
      };
      for (const i of timeline.critical) {
        const at = rowOf.get(boxes.lane[i]);
        if (at === row && (boxes.arrived[i] - to) * this.scale < 1) { to = boxes.end[i]; continue; }
        flush();
        [from, to, row] = [boxes.arrived[i], boxes.end[i], at];
      }
      flush();
    }
  }

  drawArrows() {
    const list = [];
    const shown = this.chosen || this.hovered;
    if (shown) {
      const {timeline, box} = shown;
      arrowsOf(timeline);
      for (const i of [...timeline.into.get(box) || [], ...timeline.from.get(box) || []]) list.push([timeline, i]);
    }
    if (this.allArrows) {
      for (const timeline of this.timelines)
        for (let i = 0; i < timeline.arrows.length && list.length < 4000; i += 3) {
          const {boxes} = timeline, from = timeline.arrows[i], to = timeline.arrows[i + 1];
          if (boxes.end[from] >= this.start && boxes.begin[to] <= this.stop) list.push([timeline, i]);
        }
    }
    const rows = new Map(this.timelines.map(timeline => [timeline, []]));
    for (const row of this.rows) if (row.lane) rows.get(row.timeline)[row.l] = row;
    const drawn = new Set();  // many arrows coincide when zoomed out
    for (const [timeline, i] of list) {
      const {arrows, boxes} = timeline, of = rows.get(timeline);
      const a = of[boxes.lane[arrows[i]]], b = of[boxes.lane[arrows[i + 1]]];
      if (!a || !b) continue;
      const column = box => Math.round(this.x(boxes.end[box]) / 4);
      const key = `${a.y} ${b.y} ${column(arrows[i])} ${column(arrows[i + 1])}`;
      if (drawn.size > 400 && drawn.has(key)) continue;
      drawn.add(key);
      this.drawArrow(timeline, arrows[i], arrows[i + 1], arrows[i + 2], a, b);
    }
  }

  // Draws an arrow from row `a` to row `b`.
  drawArrow(timeline, from, to, betweenRanks, a, b) {
    const {boxes} = timeline, c = this.context;
    // An arrow between members of a collective starts at the begin of the last one to arrive.
    const meet = betweenRanks && boxes.end[from] > boxes.begin[to];
    const leaves = boxes.end[from] <= boxes.end[to] && !meet ? boxes.end[from] : boxes.begin[from];
    const x1 = this.x(leaves), x2 = this.x(Math.max(boxes.begin[to], Math.min(leaves, boxes.end[to])));
    const y1 = a.y + a.height / 2, y2 = b.y + b.height / 2;
    c.strokeStyle = betweenRanks ? this.text : this.soft;
    c.globalAlpha = 0.75;
    c.lineWidth = betweenRanks ? 1.4 : 1;
    c.beginPath();
    const bend = Math.max(14, Math.abs(x2 - x1) / 2);
    c.moveTo(x1, y1);
    c.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    c.stroke();
    c.beginPath();
    c.moveTo(x2, y2);
    c.lineTo(x2 - 6, y2 - 3);
    c.lineTo(x2 - 6, y2 + 3);
    c.fillStyle = c.strokeStyle;
    c.fill();
    c.globalAlpha = 1;
    c.lineWidth = 1;
  }

  // Draws roles stacked, persistent ones at the bottom. A pixel column shows its moment with the most bytes.
  drawMemory(row) {
    const {memory, timeline, y, height} = row, c = this.context;
    const most = Math.max(...this.timelines.flatMap(t => t.memory.map(m => m.peak)));
    const from = Math.max(GUTTER, Math.floor(this.x(0)));
    const to = Math.min(this.width, Math.ceil(this.x(timeline.end)));
    if (to <= from) return;
    const moments = this.momentsOf(memory, from, to, timeline.end), up = (height - 6) / most;
    const under = new Float64Array(to - from).fill(y + height - 1), over = under.slice();
    memory.roles.forEach((role, r) => {
      moments.forEach((i, x) => { over[x] = under[x] - memory.bytes[r][i] * up; });
      c.beginPath();
      c.moveTo(from, under[0]);
      for (let x = 0; x < over.length; x++) { c.lineTo(from + x, over[x]); c.lineTo(from + x + 1, over[x]); }
      for (let x = over.length - 1; x >= 0; x--) { c.lineTo(from + x + 1, under[x]); c.lineTo(from + x, under[x]); }
      c.fillStyle = this.accent;
      c.globalAlpha = 0.78 - 0.62 * r / Math.max(1, memory.roles.length - 1);
      c.fill();
      under.set(over);
    });
    c.globalAlpha = 1;
  }

  // Returns an index into the strip's times for each pixel in [from, to).
  momentsOf(memory, from, to, end) {
    const moments = new Int32Array(to - from), {times} = memory;
    if (!memory.sums) memory.sums = times.map((_, i) => memory.bytes.reduce((sum, of) => sum + of[i], 0));
    let i = 0;
    for (let x = from; x < to; x++) {
      const begin = this.time(x), stop = Math.min(end, this.time(x + 1));
      while (i + 1 < times.length && times[i + 1] <= begin) i++;
      let best = i;
      for (let k = i + 1; k < times.length && times[k] < stop; k++) if (memory.sums[k] > memory.sums[best]) best = k;
      moments[x - from] = best;
    }
    return moments;
  }

  hit(x, y) {
    const at = y - TOP + this.scroll;
    if (y < TOP || x < GUTTER) return null;
    const row = this.rows.find(one => at >= one.y && at < one.y + one.height + 2);
    if (!row) return null;
    const time = this.time(x);
    if (row.memory) return {memory: row.memory, timeline: row.timeline, time};
    if (!row.lane) return null;
    const {boxes} = row.timeline;
    const i = firstAfter(row.timeline, row.lane, time - 1.5 / this.scale);
    return i < row.lane.end && boxes.begin[i] <= time + 1.5 / this.scale ? {timeline: row.timeline, box: i} : null;
  }
}

function luminance(colour) {
  const parts = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16) / 255)
    .map(v => v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}

function hatch(context, colour, paper) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8;
  const t = tile.getContext('2d');
  t.fillStyle = paper;
  t.fillRect(0, 0, 8, 8);
  t.strokeStyle = colour;
  t.lineWidth = 2;
  for (const shift of [-8, 0, 8]) { t.beginPath(); t.moveTo(shift, 8); t.lineTo(shift + 8, 0); t.stroke(); }
  return context.createPattern(tile, 'repeat');
}

// Returns the text, truncated with an ellipsis if it is wider than `room`.
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let most = Math.floor(text.length * room / context.measureText(text).width);
  while (most > 1 && context.measureText(text.slice(0, most) + '…').width > room) most--;
  return most > 1 ? text.slice(0, most) + '…' : '';
}
