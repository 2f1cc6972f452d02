#!/usr/bin/env python3
"""How long a frame of a page of `prun draw` with 100,000 boxes takes, while a headless browser zooms and pans.

    tools/bench/frames.py build/release/bin/prun            # median and 99th percentile, in milliseconds
    tools/bench/frames.py build/release/bin/prun --shot large.png

A frame is what the page does from one requestAnimationFrame to the next with nothing to wait for: its script, and the
rasterizing of the canvas, which reading a pixel back ends. The browser renders in software (--disable-gpu). The page's own
functions zoom from all of it to five hundredth and back, and pan on the way, first without arrows, then with those of all
boxes. All of it is done four times, and of each frame the least counts, so that what else the machine does is left out.
"""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

BROWSERS = ["chromium-headless-shell", "chromium", "google-chrome"]
BOXES, STREAMS = 100_000, 10

DRIVER = """
<script>
'use strict';
(() => {
  let times = {};
  const pixel = () => view.context.getImageData(view.width >> 1, view.seen >> 1, 1, 1).data[0];
  const frame = (what, act) => {
    const begin = performance.now();
    act();
    view.draw();
    pixel();
    (times[what] = times[what] || []).push(performance.now() - begin);
  };
  const round = what => {
    view.fit();
    for (let i = 0; i < 60; i++) {
      frame(what + 'zoom', () => view.zoom(0.9, GUTTER + 100 + 13 * (i % 60)));
      if (i % 6 === 0) for (let p = 0; p < 10; p++) frame(what + 'pan', () => view.pan(p < 5 ? 0.15 : -0.13));
    }
    for (let i = 0; i < 60; i++) frame(what + 'zoom', () => view.zoom(1 / 0.9));
  };
  const least = {};
  for (let pass = 0; pass < 4; pass++) {
    times = {};
    for (const arrows of [false, true]) {
      view.allArrows = arrows;
      round(arrows ? 'with arrows: ' : '');
    }
    for (const [what, list] of Object.entries(times))
      least[what] = list.map((time, i) => Math.min(time, (least[what] || list)[i]));
  }
  const out = document.createElement('pre');
  out.id = 'frames';
  out.textContent = JSON.stringify({boxes: timelines.reduce((sum, one) => sum + one.boxes.count, 0), times: least});
  document.body.append(out);
})();
</script>
"""


def write_trace(path):
    """Streams of ops of varying length, of which every fourth leads to the next stream and some are collectives."""
    events, flows = [], 0
    for tid in range(STREAMS):
        events.append({"ph": "M", "pid": tid // 2, "tid": tid % 2, "name": "thread_name",
                       "args": {"name": ["compute", "reduce"][tid % 2]}})
        at = 0.5
        for i in range(BOXES // STREAMS):
            length = 1 + (i * 7919 + tid * 104729) % 97 / 10
            name, kind = ("linear", "compute") if tid % 2 == 0 else ("all_reduce", "communication")
            events.append({"ph": "X", "pid": tid // 2, "tid": tid % 2, "ts": at, "dur": length, "cat": kind,
                           "name": f"{name} block{i // 20 % 12}",
                           "args": {"at": "plan.lua:3", "unit": f"block{i // 20 % 12}", "step": 0, "op": i,
                                    "phase": ["forward", "backward"][i // 200 % 2], "bytes": 4096, "microbatch": i // 400}})
            if i % 4 == 0 and tid % 2 == 0:
                for ph, thread, moment in (("s", 0, at + length), ("f", 1, at + length + 0.2)):
                    events.append({"ph": ph, "id": flows, "pid": tid // 2, "tid": thread, "ts": moment, "name": "edge"})
                flows += 1
            at += length + (i % 5) / 4
    path.write_text(json.dumps({"traceEvents": events}))


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prun")
    parser.add_argument("--shot", help="also write a picture of the page here")
    given = parser.parse_args()
    browser = next((shutil.which(name) for name in BROWSERS if shutil.which(name)), None)
    if browser is None:
        sys.exit("there is no chromium-headless-shell, chromium or google-chrome")
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        write_trace(folder / "trace.json")
        page = folder / "page.html"
        subprocess.run([given.prun, "draw", str(folder / "trace.json"), "--out", str(page)], check=True)
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 f"--user-data-dir={folder / 'profile'}", "--window-size=1280,900", "--timeout=240000"]
        if given.shot:
            subprocess.run([*words, f"--screenshot={given.shot}", f"file://{page}"], check=True, capture_output=True,
                           timeout=300)
        page.write_text(page.read_text().replace("</body>", DRIVER + "</body>"))
        done = subprocess.run([*words, "--dump-dom", f"file://{page}"], capture_output=True, text=True, timeout=300)
        found = re.search(r'<pre id="frames">(.*?)</pre>', done.stdout, re.DOTALL)
        if not found:
            sys.exit(f"the page's script did not end\n{done.stderr[-2000:]}")
        report = json.loads(found[1])
    print(f"{report['boxes']} boxes, {page.name} in {pathlib.Path(browser).name}, 1280 x 900, software rendering")
    print(f"{'':<20} {'frames':>7} {'median':>9} {'p99':>9} {'most':>9}")
    everything = [time for times in report["times"].values() for time in times]
    for what, times in [*report["times"].items(), ("all", everything)]:
        print(f"{what:<20} {len(times):>7} {statistics.median(times):>6.1f} ms {quantile(times, 0.99):>6.1f} ms "
              f"{max(times):>6.1f} ms")


if __name__ == "__main__":
    main()
