// Loss and throughput of runs by step, as lines that differ in colour and dashes.
'use strict';

const STROKES = [['forward', []], ['backward', [7, 4]], ['gather', [2, 3]], ['gradient', [10, 3, 2, 3]],
  ['optimizer', [5, 2]], ['activation', [1, 4]]];

function drawCurves(curves, theme) {
  const colour = r => theme.colours[KINDS.indexOf(STROKES[r % STROKES.length][0])];
  document.getElementById('runs').replaceChildren(...curves.map((curve, r) => {
    const item = document.createElement('span'), mark = document.createElement('i');
    mark.style.borderTopColor = colour(r);
    mark.style.borderTopStyle = r % STROKES.length ? 'dashed' : 'solid';
    const last = curve.loss.filter(v => v !== null);
    const losses = last.length ? `${last[0].toFixed(4)} to ${last[last.length - 1].toFixed(4)}` : 'unknown';
    item.append(mark, `${curve.name}: loss ${losses}`);
    return item;
  }));
  const line = (curve, r, y, marksX, marksY) =>
    ({x: curve.step, y, marksX, marksY, name: curve.name, colour: colour(r), dash: STROKES[r % STROKES.length][1]});
  drawCurve(document.getElementById('loss'), theme,
    curves.map((curve, r) => line(curve, r, curve.loss, curve.eval_step, curve.eval_loss)));
  drawCurve(document.getElementById('rate'), theme, curves.map((curve, r) => line(curve, r, curve.rate, [], [])), true);
}

function niceTicks(low, high, count) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough);
  const list = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) list.push(v);
  return list;
}

function tickText(value) {
  if (Math.abs(value) >= 1e6) return `${shortNumber(value / 1e6)}M`;
  if (Math.abs(value) >= 1e4) return `${shortNumber(value / 1e3)}k`;
  return Number(value.toPrecision(4)).toString();
}

// Math.min and Math.max accept fewer arguments than a list may have.
function least(list) { return list.reduce((a, b) => Math.min(a, b), Infinity); }
function most(list) { return list.reduce((a, b) => Math.max(a, b), -Infinity); }

// Returns the axes of a figure, which map steps and values to pixels.
function axesOf(canvas, lines, fromZero) {
  const known = v => v !== null && Number.isFinite(v);
  const xs = lines.flatMap(l => [...l.x, ...l.marksX]), ys = lines.flatMap(l => [...l.y, ...l.marksY]).filter(known);
  const low = fromZero ? 0 : least(ys), high = most(ys);
  const room = (high - low || 1) * 0.06;
  const axes = {left: 58, right: canvas.clientWidth - 12, top: 10, bottom: canvas.clientHeight - 26,
    x0: least(xs), x1: Math.max(most(xs), least(xs) + 1), y0: fromZero ? 0 : low - room, y1: high + room,
    empty: ys.length === 0};
  axes.x = v => axes.left + (v - axes.x0) / (axes.x1 - axes.x0) * (axes.right - axes.left);
  axes.y = v => axes.bottom - (v - axes.y0) / (axes.y1 - axes.y0) * (axes.bottom - axes.top);
  return axes;
}

function drawCurve(canvas, theme, lines, fromZero = false) {
  const ratio = window.devicePixelRatio || 1, c = canvas.getContext('2d');
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  const axes = axesOf(canvas, lines, fromZero);
  if (axes.empty) return;
  c.font = '11px system-ui, sans-serif';
  c.textBaseline = 'middle';
  for (const v of niceTicks(axes.y0, axes.y1, 4)) {
    c.fillStyle = theme.line;
    c.fillRect(axes.left, Math.round(axes.y(v)), axes.right - axes.left, 1);
    c.fillStyle = theme.soft;
    c.textAlign = 'right';
    c.fillText(tickText(v), axes.left - 8, axes.y(v));
  }
  c.textAlign = 'center';
  for (const v of niceTicks(axes.x0, axes.x1, 6).filter(Number.isInteger))
    c.fillText(tickText(v), Math.min(axes.x(v), axes.right - 8), axes.bottom + 14);
  lines.forEach(line => {
    c.strokeStyle = line.colour;
    c.lineWidth = 2;
    c.setLineDash(line.dash);
    c.beginPath();
    let open = false;
    line.x.forEach((x, i) => {
      if (line.y[i] === null) { open = false; return; }
      if (open) c.lineTo(axes.x(x), axes.y(line.y[i])); else c.moveTo(axes.x(x), axes.y(line.y[i]));
      open = true;
    });
    c.stroke();
    c.setLineDash([]);
    c.fillStyle = line.colour;
    line.marksX.forEach((x, i) => { c.beginPath(); c.arc(axes.x(x), axes.y(line.marksY[i]), 3.5, 0, 7); c.fill(); });
    if (line.x.length === 1) { c.beginPath(); c.arc(axes.x(line.x[0]), axes.y(line.y[0]), 3, 0, 7); c.fill(); }
  });
  const caption = canvas.parentElement.querySelector('figcaption');
  caption.dataset.name = caption.dataset.name || caption.textContent;
  canvas.onpointermove = event => { caption.textContent = valuesAt(lines, axes, event.offsetX); };
  canvas.onpointerleave = () => { caption.textContent = caption.dataset.name; };
}

// Returns the values of the lines at the step under the pointer: "step 12: baseline 3.21, wide 3.02".
function valuesAt(lines, axes, x) {
  const step = Math.round(axes.x0 + (x - axes.left) / (axes.right - axes.left) * (axes.x1 - axes.x0));
  const values = lines.map(line => [line.name, line.y[line.x.indexOf(step)]])
    .filter(([, value]) => value !== undefined && value !== null);
  return `step ${step}: ${values.map(([name, value]) => `${name} ${tickText(value)}`).join(', ') || 'none'}`;
}
