"""Shrinks a case: tries simpler values one by one and keeps those with the same kind of outcome."""
import copy

PLAIN = {"micro": [1, 2], "steps": [1, 2], "seed": [0], "dtype": ["f64"], "layers": [1, 2, 3], "heads": [1, 2], "kv_heads": [1, 2],
         "width": [2, 4, 8], "size": [1, 2, 4], "hidden": [2, 4], "context": [2, 4, 8], "vocab": [16], "experts": [2, 4],
         "choices": [1], "batch": [1, 2, 4, 8], "inputs": [2], "outputs": [2], "drop": [""], "norm": ["none", "rmsnorm"],
         "mlp": ["none", "relu"], "schedule": ["gpipe", "1f1b"], "after": [False], "causal": [True], "bias": [False],
         "positions": [False], "tied": [False], "head_norm": [False], "merged": [False], "two_kinds": [False], "residual": [True],
         "rotary": [False], "rules": [""], "router": [""], "loss": [""], "dropless": [False], "documents": [False], "separate": [False], "attention": [False], "blocks": [True], "lr": [0.1], "device": ["reference"], "activation": ["none"]}
NEEDED = {"axis", "over", "units", "column", "row", "rows", "path", "batch", "inputs", "outputs", "name", "layers", "width", "schedule",
          "heads", "context", "vocab", "lr", "text", "eot"}


def containers(case):
    """Returns the paths of dicts whose entries can be simplified."""
    yield ("plan",)
    yield ("check",)
    yield ("extras",)
    for part in ("model", "data", "optimizer"):
        yield (part, "options")
    for index in range(len(case["strategies"])):
        yield ("strategies", index, "options")


def at(case, path):
    for key in path:
        case = case[key]
    return case


def without_axis(case, axis):
    """Returns the case without an axis and the strategies on it."""
    case = copy.deepcopy(case)
    case["mesh"] = [each for each in case["mesh"] if each[0] != axis]
    case["strategies"] = [one for one in case["strategies"]
                          if one["options"].get("axis") != axis and axis not in one["options"].get("over", [])]
    return case if case["mesh"] else None


def simpler(case):
    """Yields cases that are one step simpler, the largest steps first."""
    for name, _ in case["mesh"]:
        yield without_axis(case, name)
    for part in ("eval", "report"):
        if part in case:
            yield {key: of for key, of in case.items() if key != part}
    for index, one in enumerate(case["strategies"]):
        if one["word"] == "recompute":
            smaller = copy.deepcopy(case)
            del smaller["strategies"][index]
            yield smaller
        if one["word"] in ("zero1", "zero2", "zero3", "fsdp", "small_whole") and "axis" in one["options"]:
            smaller = copy.deepcopy(case)
            smaller["strategies"][index] = {"word": "ddp", "options": {"axis": one["options"]["axis"]}}
            yield smaller
    for index, (_, size) in enumerate(case["mesh"]):
        for smaller_size in range(1, size):
            smaller = copy.deepcopy(case)
            smaller["mesh"][index][1] = smaller_size
            yield smaller
    yield from simpler_model(case)
    for path in containers(case):
        for name, of in at(case, path).items():
            yield from simpler_entry(case, path, name, of)


def simpler_model(case):
    options = case["model"]["options"]
    if case["model"]["word"] in ("llama", "moe", "mixtral"):
        smaller = copy.deepcopy(case)
        smaller["model"] = {"word": "gpt", "options": {key: options[key] for key in ("heads", "layers", "context", "vocab", "width")}}
        yield smaller
    if case["optimizer"] != {"word": "sgd", "options": {"lr": 0.1}}:
        smaller = copy.deepcopy(case)
        smaller["optimizer"] = {"word": "sgd", "options": {"lr": 0.1}}
        yield smaller


def simpler_entry(case, path, name, of):
    own = case["model"]["word"] == "own" and path[0] == "model"
    if name not in NEEDED and not own and path != ("plan",):
        smaller = copy.deepcopy(case)
        del at(smaller, path)[name]
        yield smaller
    for plain in PLAIN.get(name, []):
        if plain == of or isinstance(of, int) and not isinstance(of, bool) and isinstance(plain, int) and plain > of:
            if plain == of:
                return
            continue
        smaller = copy.deepcopy(case)
        at(smaller, path)[name] = plain
        yield smaller


def shrink(case, outcome, judge, most):
    """Returns the smallest case found in `most` trials, and its outcome."""
    tried, again = 0, True
    while again and tried < most:
        again = False
        for smaller in simpler(case):
            if smaller is None or tried >= most:
                continue
            tried += 1
            found = judge.judge(smaller)
            if found.key == outcome.key:
                case, outcome, again = smaller, found, True
                break
    return case, outcome
