"""GPT-2 124M on one GPU, 64 samples of 1,024 tokens: the step alone with a table by op, and variants of it.

The options match PyTorch's defaults: attention's gradient is summed in any order, GEMM algorithms are timed at the
start.
"""
import functools
import json
import statistics

import token_ids

from gpu_check import op_table, remedies
from gpu_check.bars import ALONE, BARS, GAPS, HOST, HOST_US, IDLE
from gpu_check.check import Check, Part, Verdict
from gpu_check.results import NotPossible

FAST = "deterministic=0,autotune=1"  # equal to gpu_train.py --fast
SMALL = {"layers": 1, "width": 64, "heads": 2, "context": 32, "vocab": 512, "batch": 4}  # --small
STEPS, WARMUP, TRACED = 30, 10, 6
TOKENS = 2_000_000


def tokens(context, kind="uniform"):
    """Returns a file of token ids, and writes it if it is missing."""
    path = context.scratch / f"tokens_{kind}.bin"
    count = 20_000 if context.small else TOKENS
    if not path.exists() or path.stat().st_size != 2 * count:
        token_ids.write(path, kind, SMALL["vocab"] if context.small else token_ids.REAL_VOCAB, count)
    return path


def words_of(context, steps, options=FAST, kind="uniform", **settings):
    words = [context.prun, "tools/bench/gpt2.lua", "--device", "cuda", *(["--device-options", options] if options else [])]
    for name, value in {**(SMALL if context.small else {}), **settings, "steps": steps, "data": tokens(context, kind)}.items():
        words += ["--set", f"{name}={value}"]
    return words


def steady(rows):
    """Returns the rows after the warmup, because the first steps time algorithms, run eagerly and are captured."""
    return rows[WARMUP:] if len(rows) > WARMUP + 2 else rows[3:]


def median(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def trained(context):
    """Returns (how the run ended, its steady rows). Several checks share the run."""
    context.need_gpu()

    def measure():
        done, rows = context.rows(words_of(context, STEPS), timeout=120)
        return done, steady(rows)
    return context.once("gpt2", measure)


def predictions(context):
    """Returns ({kind: seconds}, seconds of the step) by the cost model, and both at the data sheet's peaks."""
    cluster = op_table.cluster_of(context.machine["gpus"][0])
    if cluster is None:
        return ({}, None), ({}, None)
    words = [word for word in words_of(context, STEPS, "") if word not in ("--device", "cuda")]
    simulated = [words[0], "sim", *words[1:], "--json", "--whole", "--cluster"]
    files = [context.top / "plans/clusters" / f"{cluster}.yaml", op_table.ideal_cluster(context.top, cluster, context.folder)]
    found = context.together(*(functools.partial(context.run, *simulated, file, timeout=60) for file in files))
    return tuple(op_table.seconds_by_kind(done.out) for done in found)


def alone(context):
    done, rows = trained(context)
    step_s = median(rows, "time_s")
    if step_s is None:
        return Verdict(False, bar=BARS[ALONE], note=done.why())
    sizes = {"batch": 64, "context": 1024} | (SMALL if context.small else {})
    mfu = median(rows, "mfu")
    figure = (f"{step_s * 1e3:.2f} ms, {sizes['batch'] * sizes['context'] / step_s:,.0f} tokens/s, MFU {f'{mfu:.1%}' if mfu else 'unknown'}"
              f" (median of {len(rows)} steps)")
    trace = context.folder / "gpt2_trace.json"
    trace.unlink(missing_ok=True)
    traced = context.run(*words_of(context, TRACED), "--trace", trace, timeout=90)
    found = op_table.read(trace)
    (predicted, whole), (floor, least) = predictions(context) if not context.cut else (({}, None), ({}, None))
    if whole:
        figure += f"; predicted {whole * 1e3:.1f} ms, floor {least * 1e3:.1f} ms" if least else f"; predicted {whole * 1e3:.1f} ms"
    (context.folder / "gpt2.json").write_text(json.dumps({"step_s": step_s, "mfu": mfu, "host_us": median(rows, "host_us"), "idle": median(rows, "idle"),
                                                          "ops": found, "predicted_s": predicted, "floor_s": floor}, indent=1) + "\n")
    note = "" if done.ok else done.why() if not traced.ok else ""
    if not found:
        note = f"the trace has no ops: {traced.why()}"
    return Verdict(done.ok and bool(found), figure, BARS[ALONE], note, op_table.table(found, predicted, floor) if found else [])


def overhead(context, name, key, text, limit):
    done, rows = trained(context)
    values = sorted(row[key] for row in rows if row.get(key) is not None)
    if not values:
        return Verdict(False, bar=BARS[name], note=f"the metrics have no {key}" if done.ok else done.why())
    middle, ninth = statistics.median(values), values[len(values) * 9 // 10]
    figure = f"{text(middle)} (median of {len(values)} steps; nine of ten under {text(ninth)})"
    return Verdict(middle < limit, figure, BARS[name], "" if middle < limit else "above its bar")


def variant(context, options=FAST, kind="uniform", more=(), **settings):
    """Compares the step under other options with the default step. `more`: options of prun."""
    base_done, base = trained(context)
    done, rows = context.rows([*words_of(context, STEPS, options, kind, **settings), *more], timeout=90)
    if done.status == 2 and "there is no option" in done.err:
        raise NotPossible(f"this prun has no {more[0]}")
    step_s, base_s = median(steady(rows), "time_s"), median(base, "time_s")
    if step_s is None:
        return Verdict(False, note=done.why())
    ratio = f", {step_s / base_s:.3f} × the step as it is" if base_s else f" (no step to compare with: {base_done.why()})"
    return Verdict(done.ok, f"{step_s * 1e3:.2f} ms{ratio}", "", "" if done.ok else done.why())


VARIANTS = {
    "vocabulary of 50,257": dict(vocab=50257),
    "vocabulary of 50,257, not padded": dict(vocab=50257, more=("--pad-vocabulary", "1")),
    "vocabulary of 50,304": dict(vocab=50304),
    "deterministic=1": dict(options="deterministic=1,autotune=1"),
    "autotune=0": dict(options="deterministic=0"),
    "cudnn=0": dict(options=f"{FAST},cudnn=0"),
    "ids by Zipf's law": dict(kind="zipf"),
}


def of_alone(_context):
    host = functools.partial(overhead, name=HOST, key="host_us", text="{:.1f} µs".format, limit=HOST_US)
    gaps = functools.partial(overhead, name=GAPS, key="idle", text="{:.2%}".format, limit=IDLE)
    return [Check(ALONE, alone, timeout=150, least=25, remedies=remedies.OF_RUNS), Check(HOST, host, timeout=90, least=10),
            Check(GAPS, gaps, timeout=90, least=10)]


def of_variants(context):
    settings = {name: dict(v) for name, v in VARIANTS.items()}
    if context.small:
        for v in settings.values():
            v.pop("vocab", None)
    return [Check(name, functools.partial(variant, **v), timeout=120, least=15) for name, v in settings.items()]


USES = ("prun", "cuda", "lua", "tools/bench/gpt2.lua")
PART = Part("gpt2", "GPT-2 124M alone, by op", of_alone, limit=110, uses=USES)
VARIANTS_PART = Part("variants", "GPT-2 124M under other options", of_variants, limit=150, uses=USES)
