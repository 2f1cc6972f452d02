#!/usr/bin/env python3
"""The content of `prun draw` pages, from a headless browser's document after the page's script has run.

The page tests itself: with #test after its address it presses its keys and writes the results. Without chromium this
test checks only the file, and prints that; a folder as second argument keeps the pages.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BROWSERS = ["chromium-headless-shell", "chromium", "google-chrome"]
BOXES = 100_000


def draw(prun, words, out):
    subprocess.run([prun, "draw", *words, "--out", str(out)], cwd=ROOT, check=True, timeout=120)
    return out.read_text()


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def check_alone(page, name):
    """Checks that a page loads nothing: its only addresses are XML namespaces."""
    addresses = [a for a in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'<>)]*", page) if "www.w3.org" not in a]
    loads = re.findall(r"<(?:link|img|iframe)\b|\bsrc=|@import|url\(|fetch\(|XMLHttpRequest", page)
    assert not addresses and not loads, f"{name}: {addresses} {loads}"


def in_browser(browser, page, folder):
    """Returns the page's report."""
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}",
             "--window-size=1280,900", "--virtual-time-budget=20000", "--dump-dom", f"file://{page}#test"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    found = re.search(r'<pre id="self-test">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"{page.name}: the page's script did not end\n{done.stderr[-2000:]}"
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def write_large_trace(path):
    """Writes ten streams of 10,000 ops each, of which every thousandth has an arrow to the next stream."""
    events = []
    per = BOXES // 10
    for tid in range(10):
        events.append({"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": f"stream {tid}"}})
        for i in range(per):
            events.append({"ph": "X", "pid": 0, "tid": tid, "ts": i * 3 + 0.5, "dur": 2, "name": f"linear block{i % 7}",
                           "cat": "compute", "args": {"at": "plan.lua:3", "unit": f"block{i % 7}", "phase": "forward",
                                                      "bytes": 4096, "op": i, "step": 0}})
    path.write_text(json.dumps({"traceEvents": events}))


def check_plan(prun, folder, browser):
    page = draw(prun, ["plans/zero3.lua", "--nproc", "2"], folder / "zero3.html")
    check_alone(page, "zero3.html")
    timeline, = data_of(page)["timelines"]
    assert [lane["name"] for lane in timeline["lanes"]] == ["compute", "gather", "reduce"], timeline["lanes"]
    boxes = len(timeline["boxes"]["begin"])
    if not browser:
        return
    report = in_browser(browser, folder / "zero3.html", folder / "profile")
    assert report["timelines"] == 1 and report["boxes"] == boxes and report["lanes"] == 3, report
    assert report["memory"] == 1 and report["critical"] > 50 and 0 < report["drawn"] <= boxes, report
    assert report["legend"] == ["forward", "backward", "all-gather", "gradient reduction", "optimizer", "other"], report
    assert "next_batch" in report["chosen"] and "plans/zero3.lua:11" in report["chosen"], report
    assert report["afterEscape"] and report["helpOpen"] and abs(report["zoomed"] - 0.7) < 0.01, report
    assert any("zero3.lua" in line for line in report["hover"]), report


def check_large(prun, folder, browser):
    write_large_trace(folder / "large.json")
    page = draw(prun, [str(folder / "large.json"), "--title", "</script><b>large</b>"], folder / "large.html")
    assert "</script><b>" not in page and data_of(page)["title"] == "</script><b>large</b>"
    assert len(page) < 60 * BOXES, f"{len(page)} bytes"
    if not browser:
        return
    report = in_browser(browser, folder / "large.html", folder / "profile")
    # A view of the whole trace draws far fewer rectangles than there are boxes.
    assert report["boxes"] == BOXES and report["drawn"] < BOXES / 4, report


def check_curves(prun, folder, browser):
    for name in ("a", "b"):
        rows = [{"step": i + 1, "loss": None if i == 3 else 5 / (i + 1), "tokens_per_s": 1000 + i} for i in range(8)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = draw(prun, [str(folder / "a.jsonl"), str(folder / "b.jsonl")], folder / "curves.html")
    check_alone(page, "curves.html")
    curves = data_of(page)["curves"]
    assert [curve["name"] for curve in curves] == ["a", "b"] and curves[0]["loss"][3] is None, curves
    if browser:
        report = in_browser(browser, folder / "curves.html", folder / "profile")
        assert report["curves"] == 2 and report["timelines"] == 0, report


def main():
    prun = str(pathlib.Path(sys.argv[1]).resolve())
    browser = next((shutil.which(name) for name in BROWSERS if shutil.which(name)), None)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else made).resolve()
        for check in (check_plan, check_large, check_curves):
            check(prun, folder, browser)
            print(f"{check.__name__}: as it should be" + ("" if browser else "; not opened: there is no chromium"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
