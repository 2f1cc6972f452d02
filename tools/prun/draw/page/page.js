// Handles keys, the pointer and buttons, and fills the elements around the canvas.
'use strict';

const drawing = JSON.parse(document.getElementById('data').textContent);
const timelines = drawing.timelines.map(unpack);
const canvas = document.getElementById('canvas');
const view = new View(canvas, timelines.length ? timelines : []);
const tip = document.getElementById('tip');
const detail = document.getElementById('detail');
const pressed = (id, on) => document.getElementById(id).setAttribute('aria-pressed', on);

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function fillHeader() {
  document.getElementById('title').textContent = drawing.title;
  document.getElementById('subtitle').textContent = drawing.subtitle;
  document.getElementById('figures').replaceChildren(...drawing.figures.map(({name, list}) => {
    const tiles = list.map(([value, what]) => {
      const tile = element('div', '', element('b', value), element('span', what));
      tile.className = 'figure';
      return tile;
    });
    const heading = element('span', drawing.figures.length > 1 ? name : '');
    heading.className = 'of';
    const row = element('div', '', ...(drawing.figures.length > 1 ? [heading] : []), ...tiles);
    row.className = 'figures';
    return row;
  }));
  document.getElementById('notes').replaceChildren(...drawing.notes.map(note => element('p', note)));
}

function fillLegend() {
  const there = new Set(timelines.flatMap(timeline => [...new Set(timeline.boxes.kind)]));
  const items = KINDS.map((id, k) => [id, k]).filter(([, k]) => there.has(k)).map(([id, k], n) => {
    const swatch = element('span');
    swatch.className = 'swatch';
    swatch.style.background = `var(--${id})`;
    const button = element('button', '', swatch, KIND_NAMES[k]);
    button.title = `show this kind alone (${n + 1})`;
    button.dataset.kind = k;
    button.setAttribute('aria-pressed', 'false');
    button.onclick = () => showKind(k);
    return button;
  });
  const legend = document.getElementById('legend');
  legend.replaceChildren(...items);
  const note = element('span',
    'hatched: waits for other ranks; thin line: waits for another stream; edge below: critical path');
  note.style.cssText = 'color: var(--soft); font-size: 12px; align-self: center';
  legend.append(note);
}

function showKind(kind) {
  view.kind = view.kind === kind ? -1 : kind;
  for (const button of document.querySelectorAll('#legend button'))
    button.setAttribute('aria-pressed', Number(button.dataset.kind) === view.kind);
  view.redraw();
}

function tellOf(place, target) {
  const lines = place.memory ? memoryLines(place) : boxLines(place.timeline, place.box);
  target.replaceChildren(...lines.map((line, i) => {
    const row = element(i === 0 ? 'b' : 'div', line);
    if (i > 0) row.className = 'soft';
    return row;
  }));
}

function memoryLines({memory, timeline, time}) {
  let i = 0;
  while (i + 1 < memory.times.length && memory.times[i + 1] <= time) i++;
  const all = memory.roles.map((role, r) => [role, memory.bytes[r][i]]).filter(([, bytes]) => bytes > 0);
  const sum = all.reduce((bytes, [, more]) => bytes + more, 0);
  return [`${bytesText(sum)} at ${timeText(timeline, Math.max(0, Math.round(time)))}`,
    ...all.map(([role, bytes]) => `${role} ${bytesText(bytes)}`), `peak ${bytesText(memory.peak)}`];
}

function choose(timeline, box, close = false) {
  view.chosen = timeline ? {timeline, box} : null;
  if (!timeline) {
    detail.replaceChildren(element('span', 'Choose a box for its arrows; ? lists the keys.'));
    view.redraw();
    return;
  }
  const [name, ...rest] = boxLines(timeline, box);
  const line = element('div', '', element('b', name), element('span', ` ${rest.join(' · ')}`));
  line.lastChild.className = 'soft';
  detail.replaceChildren(line);
  view.show(timeline, box, close);
}

function hover(event) {
  const place = view.hit(event.offsetX, event.offsetY);
  tip.hidden = !place;
  view.hovered = place && !place.memory ? place : null;
  if (!view.chosen) view.redraw();
  if (!place) return;
  tellOf(place, tip);
  const left = Math.min(event.offsetX + 16, view.width - tip.offsetWidth - 8);
  const below = event.offsetY + 18 + tip.offsetHeight < view.seen;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? event.offsetY + 18 : Math.max(4, event.offsetY - tip.offsetHeight - 12)}px`;
}

function listenToPointer() {
  let drag = null;
  canvas.addEventListener('pointerdown', event => {
    drag = {x: event.offsetX, y: event.offsetY, moved: false, overview: event.offsetY < OVERVIEW};
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', event => {
    if (!drag) { hover(event); return; }
    const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
    if (Math.abs(dx) + Math.abs(dy) > 3) drag.moved = true;
    if (!drag.moved) return;
    tip.hidden = true;
    drag.x = event.offsetX;
    drag.y = event.offsetY;
    const span = view.stop - view.start;
    const by = drag.overview ? dx / (view.width - GUTTER) * view.end : -dx / view.scale;
    view.start += by;
    view.stop = view.start + span;
    if (!drag.overview) view.scroll -= dy;
    view.limit();
    view.redraw();
  });
  canvas.addEventListener('pointerup', event => {
    const still = drag && !drag.moved;
    drag = null;
    if (!still) return;
    const place = view.hit(event.offsetX, event.offsetY);
    choose(place && !place.memory ? place.timeline : null, place ? place.box : 0);
  });
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; view.hovered = null; view.redraw(); });
  canvas.addEventListener('dblclick', event => {
    const place = view.hit(event.offsetX, event.offsetY);
    if (place && !place.memory) choose(place.timeline, place.box, true);
  });
  canvas.addEventListener('wheel', event => {
    const across = event.deltaX || (event.shiftKey ? event.deltaY : 0);
    const overflows = view.height + TOP > view.seen;
    if (event.ctrlKey || event.metaKey || (!overflows && !across)) {
      event.preventDefault();
      view.zoom(Math.exp(event.deltaY * 0.002), event.offsetX);
    } else if (across) {
      event.preventDefault();
      view.pan(across / view.width);
    } else {
      const before = view.scroll;
      view.scroll += event.deltaY;
      view.limit();
      if (view.scroll !== before) event.preventDefault();
      view.redraw();
    }
  }, {passive: false});
}

// Moves the choice by boxes of its lane. If no box is chosen, chooses the first visible box of the first lane.
function step(by) {
  if (!view.chosen) {
    const row = view.rows.find(one => one.lane);
    if (row) choose(row.timeline, firstSeen(row));
    return;
  }
  const {timeline, box} = view.chosen, lane = timeline.lanes[timeline.boxes.lane[box]];
  choose(timeline, Math.max(lane.first, Math.min(lane.end - 1, box + by)));
}
function firstSeen(row) { return Math.min(firstAfter(row.timeline, row.lane, view.start), row.lane.end - 1); }

function stepLane(by) {
  const rows = view.rows.filter(row => row.lane);
  if (!view.chosen) { view.scroll += by * 40; view.limit(); view.redraw(); return; }
  const {timeline, box} = view.chosen;
  const at = rows.findIndex(row => row.timeline === timeline && row.l === timeline.boxes.lane[box]);
  const row = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
  choose(row.timeline, Math.min(firstAfter(row.timeline, row.lane, timeline.boxes.begin[box]), row.lane.end - 1));
}

function stepPath(by) {
  const timeline = view.chosen ? view.chosen.timeline : timelines[0];
  if (!timeline.critical.length) return;
  const at = view.chosen ? timeline.critical.indexOf(view.chosen.box) : -1;
  const last = timeline.critical.length - 1;
  const next = at < 0 ? (by > 0 ? 0 : last) : Math.max(0, Math.min(last, at + by));
  choose(timeline, timeline.critical[next]);
}

const help = document.getElementById('help');
const toggles = {
  path: () => { view.pathOnly = !view.pathOnly; pressed('path', view.pathOnly); view.redraw(); },
  arrows: () => { view.allArrows = !view.allArrows; pressed('arrows', view.allArrows); view.redraw(); },
};
const KEYS = {
  ArrowLeft: () => view.chosen ? step(-1) : view.pan(-0.15), ArrowRight: () => view.chosen ? step(1) : view.pan(0.15),
  ArrowUp: () => stepLane(-1), ArrowDown: () => stepLane(1),
  '+': () => view.zoom(0.7), '=': () => view.zoom(0.7), '-': () => view.zoom(1 / 0.7), 0: () => view.fit(),
  Enter: () => view.chosen && choose(view.chosen.timeline, view.chosen.box, true),
  '[': () => stepPath(-1), ']': () => stepPath(1), c: toggles.path, a: toggles.arrows,
  Escape: () => { choose(null); if (view.kind >= 0) showKind(view.kind); },
  '?': () => help.showModal(),
};

function onKey(event) {
  if (help.open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Tab') {  // the page's focus order applies if no box is chosen and the canvas has no focus
    if (document.activeElement !== canvas || (!view.chosen && event.shiftKey)) return;
    event.preventDefault();
    step(event.shiftKey ? -1 : view.chosen ? 1 : 0);
    return;
  }
  if (event.key === 'Enter' && document.activeElement !== canvas) return;
  const kinds = document.querySelectorAll('#legend button');
  const kind = event.key >= '1' && event.key <= '9' ? kinds[event.key - 1] : null;
  const act = KEYS[event.key] || (kind && (() => kind.click()));
  if (!act) return;
  event.preventDefault();
  act();
}

function drawAll() {
  if (timelines.length) { view.resize(); view.draw(); }
  if (drawing.curves.length) drawCurves(drawing.curves, view);
}

// For tests: page.html#test writes a report about the page into it.
function tellTests() {
  const first = timelines[0];
  const report = {
    timelines: timelines.length, curves: drawing.curves.length,
    boxes: timelines.reduce((sum, timeline) => sum + timeline.boxes.count, 0),
    lanes: timelines.reduce((sum, timeline) => sum + timeline.lanes.length, 0),
    arrows: timelines.reduce((sum, timeline) => sum + timeline.arrows.length / 3, 0),
    memory: timelines.reduce((sum, timeline) => sum + timeline.memory.length, 0),
    critical: timelines.reduce((sum, timeline) => sum + timeline.critical.length, 0),
    drawn: view.drawn,
    legend: [...document.querySelectorAll('#legend button')].map(button => button.textContent),
    hover: first ? boxLines(first, first.critical[0]) : [],
  };
  if (first) {
    const press = key => document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    canvas.focus();
    press('Tab');
    report.chosen = detail.textContent;
    press('Escape');
    report.afterEscape = view.chosen === null;
    const span = view.stop - view.start;
    press('+');
    report.zoomed = (view.stop - view.start) / span;
    press('?');
    report.helpOpen = help.open;
    help.close();
    press('0');
  }
  const pre = element('pre', JSON.stringify(report));
  pre.id = 'self-test';
  document.body.append(pre);
}

fillHeader();
fillLegend();
document.getElementById('curves').hidden = !drawing.curves.length;
for (const id of ['stage', 'legend', 'detail']) document.getElementById(id).hidden = !timelines.length;
if (!timelines.length) document.querySelector('.tools').hidden = true;
choose(null);
document.getElementById('in').onclick = KEYS['+'];
document.getElementById('out').onclick = KEYS['-'];
document.getElementById('fit').onclick = KEYS[0];
document.getElementById('ask').onclick = KEYS['?'];
document.getElementById('path').onclick = toggles.path;
document.getElementById('arrows').onclick = toggles.arrows;
document.addEventListener('keydown', onKey);
window.addEventListener('resize', drawAll);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { view.readColours(); drawAll(); });
listenToPointer();
drawAll();
if (timelines.length) view.fit();
if (location.hash === '#test') tellTests();
