"""Draws sequences of operations: a configuration and a list that operations.py carries out."""
import random

from operations import PLAIN

RATES = [1.0] * 9 + [0.5]


def draw_stop(rng):
    commits = rng.choice([0, 1, 1, 2, 3])
    return {"signal": rng.choice(["kill", "kill", "term", "int"]), "commits": commits,
            "ms": round(rng.uniform(0, 60) if not commits else rng.uniform(0, 8), 1)}


def draw_run(rng, begin=None, to=None):
    """Draws a run. `begin`: value of --resume, drawn if not given."""
    to = to or rng.choice("DDDDDE")
    if begin is None:
        begin = rng.choice(["none", "auto", "auto", "auto", "folder", "node", "node"])
    source = rng.choice([to] * 4 + ["D", "E", "F"])
    stop = draw_stop(rng) if rng.random() < 0.3 else None
    nproc = rng.choice([1, 1, 1, 2, 2, 3])
    differs = {}
    if rng.random() < 0.12:
        differs = rng.choice([{"outputs": 2}, {"seed": 2}, {"order": "random"}, {"order": "epochs"}])
    drawn = {"do": "run", "to": to, "from": {"none": None, "auto": "auto", "folder": source, "node": [source, rng.randrange(1000)]}[begin],
            "more": rng.choice([40, 80, 120]) if stop else rng.choice([-1, 0, 1, 2, 2, 3, 4, 5, 6, 8, 12]),
            "every": rng.choice([4, 5, 8]) if stop else rng.choice([1, 2, 2, 3, 4, 100]), "keep": rng.choice([0, 0, 0, 1, 2, 3]),
            "nodes": 2 if nproc == 2 and rng.random() < 0.2 and not (stop and stop["signal"] == "kill") else 1, "nproc": nproc, "share": rng.choice([1, 1, 2]) if nproc > 1 else rng.choice([2, 2, 4, 4, 3, 1]),
            "strategy": rng.choice(["ddp", "ddp", "zero1", "zero2", "zero3"]), "rate": rng.choice(RATES), "differs": differs,
            "overwrite": rng.random() < 0.06, "new_data": rng.random() < 0.08,
            "chaos": round(rng.random(), 2) if stop is None and rng.random() < 0.08 else None, "stop": stop}
    drawn["init"] = rng.choice("DDEF") if begin == "none" and rng.random() < 0.2 else ""
    if drawn["chaos"] is not None:
        drawn["memory"] = rng.choice([0, 0, 1, 2])
    return {name: value for name, value in drawn.items() if name in ("do", "to", "from") or value != PLAIN[name]}


def draw_pair(rng):
    one, other = draw_run(rng), draw_run(rng)
    for run in (one, other):
        run.update(to=rng.choice("DDDE") if run is one else one["to"], stop=None, chaos=None, nodes=1)
    gap = rng.choice([0, 0, round(rng.uniform(0, 80), 1)])
    if gap:
        one.update(more=120, every=4)
    return {"do": "pair", "one": one, "other": other, "ms": gap}


def draw_beside(rng):
    pair = draw_pair(rng)
    return {**pair, "do": "beside", "to": rng.choice("EF"), "ms": round(rng.uniform(0, 80), 1)}


def draw_damage(rng):
    return {"do": "damage", "folder": rng.choice("DDDE"), "number": rng.choice([None, None, rng.randrange(1000)]),
            "how": rng.choice(["cut", "flip", "lose", "cut index", "lose index"])}


def draw_copy(rng):
    without = [(rng.choice(["cut", "lose", "cut index", "lose index", "latest"]), rng.choice([None, rng.randrange(1000)]))
               for _ in range(rng.choice([0, 1, 1, 2]))]
    return {"do": "copy", "folder": "D", "to": rng.choice("EF"), "without": without}


DRAWS = [  # (weight, function that draws an operation)
    (50, draw_run), (5, draw_pair), (2, draw_beside), (6, draw_damage), (4, draw_copy),
    (6, lambda rng: {"do": "data_changes", "content": rng.choice(["first", "first", "grown", "shrunk", "replaced"])}),
    (2, lambda rng: {"do": "data_moves"}),
    (3, lambda rng: {"do": "remove_latest", "folder": rng.choice("DDDE")}),
    (5, lambda rng: {"do": "remove", "folder": rng.choice("DDDE"), "number": rng.choice([None, rng.randrange(1000)])}),
    (4, lambda rng: {"do": "clock", "folder": rng.choice("DDDE"), "times": [rng.choice([0, 10**9, 4 * 10**9]) + rng.randrange(10**6) for _ in range(3)]}),
    (1, lambda rng: {"do": "move", "folder": "D", "to": rng.choice("EF")}),
    (2, lambda rng: {"do": "leftover", "folder": rng.choice("DE")}),
    (2, lambda rng: {"do": "clean", "folder": rng.choice("DE")}),
]


def draw_sequence(seed):
    """Returns the configuration and the operations of a seed."""
    rng = random.Random(seed)
    config = {"seed": 0, "order": rng.choice(["epochs", "epochs", "epochs", "random"]), "lr": rng.choice([0.0, 2.0**-10, 2.0**-10]),
              "momentum": rng.choice([0.0, 0.5])}
    operations = [draw_run(rng, begin="none", to="D")]
    weights, draws = zip(*DRAWS)
    for _ in range(rng.choice([3, 4, 5, 6, 8])):
        operations.append(rng.choices(draws, weights)[0](rng))
    operations.append({**draw_run(rng, begin="auto", to="D"), "stop": None, "more": 3, "every": 2})
    return config, operations
