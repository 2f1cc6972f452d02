"""Runs plans, `prun dump` and `prun check --json` and parses their output, for tests of a program's behaviour, not its
text.

Standard library only, so that a bare machine can run it.
"""
import dataclasses
import json
import math
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BYTES = {"f64": 8, "f32": 4, "i32": 4, "bf16": 2, "u8": 1}


@dataclasses.dataclass
class Op:
    stream: str
    index: int
    kind: str
    reads: list      # names of tensors
    writes: list
    elements: int    # of its first tensor
    bytes: int
    axis: str        # "": it does not communicate
    after: dict      # stream -> index of the op in this step that it waits for
    phase: str
    unit: str
    microbatch: int  # -1: none
    after_before: dict = dataclasses.field(default_factory=dict)  # the same for ops of the previous step


def run(prun, *words, check=False, env=None, **settings):
    """Returns the completed process; relative plan paths start at the root."""
    for name, value in settings.items():
        words += ("--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    words = [str(pathlib.Path(prun).resolve()), *map(str, words)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=100, env=env)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}\nended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done


def steps(prun, plan, ranks, *options, **settings):
    """Returns the metrics of each step of a run."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder, "metrics.jsonl")
        run(prun, plan, "--nproc", ranks, *options, "--metrics", metrics, check=True, **settings)
        return [json.loads(line) for line in metrics.read_text().splitlines()]


def losses(prun, plan, ranks, *options, **settings):
    return [step["loss"] for step in steps(prun, plan, ranks, *options, **settings)]


def command(prun, word, plan, ranks, settings):
    words = [word, plan, "--nproc", ranks, "--device", "reference"] + ["--json"] * (word == "check")
    return run(prun, *words, check=True, **settings).stdout


def check(prun, plan, ranks, **settings):
    """Returns the rank classes, each with roles and wire_bytes_per_step."""
    return json.loads(command(prun, "check", plan, ranks, settings))["classes"]


def programs(prun, plan, ranks, **settings):
    """Returns the step of each rank class: stream -> ops."""
    text = command(prun, "dump", plan, ranks, settings)
    return [read_step(part) for part in re.split(r"^program  .*\n", text, flags=re.M)[1:]]


def read_step(text):
    streams, stream, heading = {}, "", ("", "", -1)
    for line in text.split("\nstep\n", 1)[1].splitlines():
        if found := re.match(r"  stream (.+)$", line):
            stream = found[1]
            streams[stream] = []
        elif found := re.match(r"    (\w+)(?: (?!of microbatch)(\S+))?(?: of microbatch (\d+))?$", line):
            heading = (found[1], found[2] or "", int(found[3]) if found[3] else -1)
        elif found := re.match(r" +(\d+)  (\w+) *(.*?)(?:  \[[^]]*\])?$", line):
            streams[stream].append(read_op(stream, int(found[1]), found[2], found[3], heading))
    return streams


def read_op(stream, index, kind, rest, heading):
    parts = rest.split("  ")
    tensors = next((p for p in parts if p and p[0] != "{" and not p.startswith(("over ", "after "))), "")
    before, _, behind = tensors.partition("-> ")
    names = [[re.sub(r":\w+\[[\d,]*\]$", "", name.strip()) for name in re.split(r", (?![\d])", side) if name.strip()]
             for side in (before, behind)]
    first = re.search(r":(\w+)\[([\d,]*)\]", tensors)
    elements = math.prod(int(n) for n in first[2].split(",") if n) if first else 0
    axis = next((p.split()[1] for p in parts if p.startswith("over ")), "")
    waits = next((p[len("after "):] for p in parts if p.startswith("after ")), "")
    after, before = ({name: int(at) for name, at, back in re.findall(r"(?:^|, )([^,@]+)@(\d+)( of the step before)?", waits)
                      if bool(back) == of_before} for of_before in (False, True))
    return Op(stream, index, kind, *names, elements, elements * BYTES[first[1]] if first else 0, axis, after, *heading, before)


def sent(ops, ranks):
    """Returns the bytes that a rank sends in these ops over an axis of `ranks` ranks, using ring algorithms."""
    part = {"all_reduce": 2 * (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks, "all_to_all": (ranks - 1) / ranks,
            "all_gather": ranks - 1, "send": 1, "recv": 0}
    return sum(part[op.kind] * op.bytes for op in ops)
