"""Draws random plans: meshes, strategies in any order, models, schedules, options and sizes.

A case is nested dicts and lists of plain values, so that shrinking.py can simplify it and plan_text.py can write it as
Lua. Most cases respect the documented limits (which sizes must divide which); a few violate one on purpose.
"""
import random

import features

MOST_RANKS = 8
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "eager", "lifo", "halves"]
ZEROS = ["zero1", "zero2", "zero3", "fsdp"]
BYTES = ["0 B", "1 B", "64 B", "100 B", "257 B", "1 KiB", "4000 B", "8 KiB", "1 MiB"]


class Draw:
    """Random choices of one case."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, share):
        return self.random.random() < share

    def one(self, *values):
        return self.random.choice(values)

    def of(self, values):
        return self.random.choice(list(values))

    def between(self, low, high):
        return self.random.randint(low, high)

    def multiple(self, step, low, high):
        """Returns a multiple of `step` between about `low` and `high`, at least `step`."""
        return step * self.between(max(1, low // step), max(1, high // step))


def draw_mesh(draw):
    """Returns {axis: size}, the kinds of parallelism."""
    shares = {"pp": 0.35, "dp": 0.75, "dp2": 0.12, "cp": 0.3, "ep": 0.2, "tp": 0.45}
    most = draw.one(MOST_RANKS, MOST_RANKS, MOST_RANKS, 4, 2, 12)
    axes, ranks = {}, 1
    names = list(shares)
    draw.random.shuffle(names)
    for name in names:
        if not draw.chance(shares[name]):
            continue
        sizes = [size for size in (1, 2, 2, 2, 3, 4, 5, 6, 8) if ranks * size <= most]
        axes[name] = draw.of(sizes)
        ranks *= axes[name]
    return axes or {"dp": draw.between(1, 4)}


def data_parallel_options(draw, word):
    options = {}
    if word == "ddp":
        if draw.chance(0.3):
            options["bucket"] = draw.of(BYTES)
        if draw.chance(0.3):
            options["first"] = draw.of(BYTES)
    if word in ("zero2", "zero3", "fsdp") and draw.chance(0.2):
        options["inflight"] = draw.between(1, 4)
    if word in ("zero3", "fsdp"):
        if draw.chance(0.3):
            options["persist_below"] = draw.of(BYTES)
        if draw.chance(0.3):
            options["prefetch"] = draw.between(0, 5)
        if draw.chance(0.3):
            options["reshard_after_forward"] = False
    if word in ZEROS and draw.chance(0.06):
        options["wire"] = draw.one("f32", "bf16")
    if word != "small_whole" and draw.chance(0.15):
        options["offload"] = "optimizer"
        options["offload_ahead"] = draw.between(0, 3)
        options["offload_piece"] = draw.one("64 B", "512 B", "1000 B", "16 MiB")
    return options


def draw_data_parallel(draw, axes):
    """Draws the strategies of the axes dp and dp2."""
    found = []
    if "dp" in axes and "dp2" in axes and draw.chance(0.6):
        word = draw.one("zero3", "fsdp")
        options = data_parallel_options(draw, word)
        if draw.chance(0.3):
            options["reshard_after_forward"] = "group"
        return [{"word": word, "options": {"over": ["dp2", "dp"], **options}}]
    if "dp" in axes:
        word = draw.one("ddp", "ddp", "zero1", "zero2", "zero3", "zero3", "fsdp", "small_whole")
        if draw.chance(0.03):
            word = "local_sgd"
        options = data_parallel_options(draw, word)
        if word == "local_sgd":
            options = {"every": draw.between(1, 3)}
        if word == "small_whole":
            options = {"below": draw.of(BYTES)}
        found.append({"word": word, "options": {"axis": "dp", **options}})
    if "dp2" in axes:
        found.append({"word": "ddp", "options": {"axis": "dp2", **data_parallel_options(draw, "ddp")}})
    return found


def draw_pipeline(draw, axes):
    schedule = draw.of(SCHEDULES)
    options = {"axis": "pp", "schedule": schedule}
    if schedule == "interleaved" and draw.chance(0.4):
        options["chunks"] = draw.between(2, 3)
    if draw.chance(0.35):
        options["split"] = "flops"
    if draw.chance(0.2):
        options["transfer"] = "put"
    return {"word": "pipeline", "options": options}


def chunks_of(strategies):
    for one in strategies:
        if one["word"] == "pipeline":
            schedule = one["options"]["schedule"]
            return one["options"].get("chunks", 2 if schedule in ("interleaved", "zb_v") else 1)
    return 1


def draw_strategies(draw, axes):
    found = draw_data_parallel(draw, axes)
    if "cp" in axes:
        options = {"bucket": draw.of(BYTES)} if draw.chance(0.3) else {}
        found.append({"word": "context_parallel", "options": {"axis": "cp", **options}})
    if "ep" in axes:
        options = {"bucket": draw.of(BYTES)} if draw.chance(0.3) else {}
        found.append({"word": "expert_parallel", "options": {"axis": "ep", **options}})
    if "tp" in axes:
        options = {"sequence": True} if draw.chance(0.4) else {}
        found.append({"word": "tensor_parallel", "options": {"axis": "tp", **options}})
    if "pp" in axes:
        found.append(draw_pipeline(draw, axes))
    if draw.chance(0.25):
        options = {"whole": True} if draw.chance(0.4) else {}
        found.append({"word": "recompute", "options": options})
    draw.random.shuffle(found)
    return found


def option(strategies, word, name, default=None):
    for one in strategies:
        if one["word"] == word:
            return one["options"].get(name, default)
    return default


def heads_and_size(draw, tp):
    heads = draw.multiple(tp, 1, 6)
    divisors = [n for n in range(1, heads + 1) if heads % n == 0 and n % tp == 0]
    return heads, draw.of(divisors or [heads])


def draw_context(draw, axes, sequence):
    step = 2 * axes["cp"] if "cp" in axes else 1
    if sequence:
        step *= axes["tp"]
    return draw.multiple(step, 2, 12)


def shared_sizes(draw, axes, strategies):
    """Draws the sizes that all token models have."""
    tp, sequence = axes.get("tp", 1), option(strategies, "tensor_parallel", "sequence", False)
    heads, kv_heads = heads_and_size(draw, tp)
    stages = axes.get("pp", 1) * chunks_of(strategies)
    layers = draw.between(stages, max(stages, 3)) if "pp" in axes else draw.between(1, 3)
    return {"heads": heads, "kv_heads": kv_heads, "layers": layers, "context": draw_context(draw, axes, sequence),
            "vocab": draw.one(16, 17, 19, 23, 24, 31, 32)}


def draw_library_model(draw, axes, strategies, word):
    sizes, tp = shared_sizes(draw, axes, strategies), axes.get("tp", 1)
    heads, kv_heads = sizes["heads"], sizes.pop("kv_heads")
    size = draw.one(2, 4, 4, 6, 8) if word in ("llama", "mixtral") else draw.between(1, 7)
    options = {**sizes, "width": heads * size}
    if word in ("llama", "mixtral"):
        options["kv_heads"] = kv_heads
        if draw.chance(0.25):
            options["head_size"], options["width"] = size, draw.between(3, 20)
        if draw.chance(0.15):
            options["rope_type"], options["rope_factor"] = draw.one("linear", "llama3"), draw.one(2.0, 8.0)
            options["original_context"] = draw.between(4, 16)
    if word == "llama" and draw.chance(0.2):
        options[draw.one("attention_bias", "mlp_bias")] = True
    if word != "moe":
        options["hidden"] = draw.multiple(tp, 3, 24)
    if word == "gpt":
        if draw.chance(0.15):
            options["dropout"] = draw.one(0.1, 0.3)
        if draw.chance(0.1) and "cp" not in axes:
            options["positions"] = options["context"] + draw.between(1, 5)
    if word in ("gpt", "llama", "mixtral") and draw.chance(0.2):
        options["tied"] = True
    if word in ("moe", "mixtral"):
        add_experts(draw, axes, options)
        if word == "moe" and draw.chance(0.12):
            options["capacity"] = draw.one(0.5, 1.0, 1.25, 2.0, 100.0)
            if draw.chance(0.5):
                options["dropless"] = True
    return {"word": word, "options": options}


def add_experts(draw, axes, options):
    options["experts"] = draw.multiple(axes.get("ep", 1), 2, 6)
    options["choices"] = draw.between(1, min(3, options["experts"]))
    if draw.chance(0.3):
        options["aux"] = draw.one(0, 0.1)


def draw_own_model(draw, axes, strategies):
    """Draws a token model built from functions of prun.nn."""
    sizes, tp = shared_sizes(draw, axes, strategies), axes.get("tp", 1)
    rotary = draw.chance(0.4)
    size = draw.one(2, 4, 4, 6, 8, 16) if rotary else draw.between(1, 8)
    parts = {**sizes, "size": size, "rotary": rotary, "causal": not draw.chance(0.15),
             "width": sizes["heads"] * size if draw.chance(0.5) else draw.between(2, 20),
             "norm": draw.one("none", "rmsnorm", "rmsnorm", "layernorm"), "after": draw.chance(0.15),
             "attention": draw.chance(0.75), "mlp": draw.one("none", "gelu", "gelu", "relu", "tanh", "swiglu"),
             "hidden": draw.multiple(tp, 2, 20), "bias": draw.chance(0.5), "drop": "", "drop_rate": 0.1,
             "positions": draw.chance(0.2), "tied": draw.chance(0.15), "head_norm": draw.chance(0.6),
             "blocks": True, "merged": "pp" not in axes and draw.chance(0.1), "two_kinds": draw.chance(0.02 if "pp" in axes else 0.2),
             "residual": not draw.chance(0.1), "strength": 0.5}
    if draw.chance(0.25 if tp > 1 else 0.4):
        parts["blocks"] = False
    if draw.chance(0.2):
        parts["drop"] = draw.one("residual", "inner", "embed")
    if draw.chance(0.04):
        parts["square"] = draw.one(1, 15)
    if "ep" in axes or draw.chance(0.1):
        parts["mlp"] = draw.one("moe", "moe_gated")
        add_experts(draw, axes, parts)
        if draw.chance(0.1):
            parts["capacity"] = draw.one(1.0, 1.25, 2.0)
            parts["dropless"] = draw.chance(0.5)
    if parts["mlp"] == "none" and (tp == 1 or draw.chance(0.5)):
        parts["attention"] = True
    if draw.chance(0.35):
        draw_separate(draw, axes, parts)
    return {"word": "own", "options": parts}


def draw_separate(draw, axes, parts):
    """Attention of separate q, k and v; with fewer heads of keys than ranks, or with rules that need another op."""
    parts["separate"] = True
    if draw.chance(0.3):
        parts["kv_heads"] = 1
    if draw.chance(0.6):
        parts["rules"] = draw.one(", window = 3", ", softcap = 2.0, scale = 0.5", ", scale = 1.0",
                                  f", bias = nn.parameter(\"bias\", {{ {parts['heads']}, {parts['context']}, {parts['context']} }}, "
                                  '{ "normal", 0.5 })')


def draw_flat_model(draw, axes, strategies):
    """Draws a model of plain vectors: mlp, or one of tests/parity/odd_models.lua."""
    tp, stages = axes.get("tp", 1), axes.get("pp", 1) * chunks_of(strategies)
    layers, width = draw.between(max(stages, 1), max(stages, 4)), draw.multiple(tp, 2, 17)
    if draw.chance(0.4):
        name = draw.one("again", "lent", "table", "unet", "raw", "bare", "after")
        return {"word": "odd", "options": {"name": name, "layers": layers, "width": width}}
    return {"word": "mlp", "options": {
        "inputs": draw.between(1, 17), "outputs": draw.multiple(tp, 1, 17), "width": width, "layers": layers,
        "bias": draw.chance(0.7), "activation": draw.one("relu", "gelu", "none"),
        "activate_last": draw.chance(0.2), "loss": draw.one("mse", "mean_square", "mean")}}


def draw_model(draw, axes, strategies):
    if "ep" in axes:
        word = draw.one("moe", "moe", "mixtral", "own")
    else:
        word = draw.one("gpt", "gpt", "llama", "llama", "moe", "mixtral", "own", "own", "own", "flat", "flat")
    if word == "flat" and "cp" in axes:
        word = "gpt"
    if word == "own":
        return draw_own_model(draw, axes, strategies)
    if word == "flat":
        return draw_flat_model(draw, axes, strategies)
    return draw_library_model(draw, axes, strategies, word)


def adapt_strategies(draw, axes, strategies, model):
    """Adapts options that depend on the model: layers of tp, units of recompute, sequence if a table of positions
    forbids it.
    """
    words = model["word"]
    flat = words in ("mlp", "odd")
    for one in strategies:
        options = one["options"]
        if one["word"] == "tensor_parallel" and flat:
            options.pop("sequence", None)
            options.update(column=["linear"], row=[], rows=[])
        if one["word"] == "recompute":
            units = ["layer"] if flat else draw.one(["block"], ["block"], ["embed"], ["head"], ["block", "head", "embed"])
            if words == "odd" and model["options"]["name"] == "again" and draw.chance(0.5):
                units = ["shared"]
            options["units"] = units
    if words in ("gpt", "moe") or words == "own" and model["options"]["positions"]:
        if axes.get("cp", 1) > 1 and axes.get("tp", 1) > 1 and not draw.chance(0.03):
            for one in strategies:
                one["options"].pop("sequence", None)


def fold_experts(draw, axes, strategies, model):
    """Sometimes splits the experts over one or two axes of other strategies, or of one and their own."""
    options, others = model["options"], [name for name in ("dp", "dp2", "cp", "tp") if name in axes]
    if "experts" not in options or not others or not draw.chance(0.5):
        return
    draw.random.shuffle(others)
    over = others[:draw.between(1, 2)] if "ep" not in axes else ["ep", others[0]]
    ranks = 1
    for name in over:
        ranks *= axes[name]
    if not draw.chance(0.03):
        options["experts"] = ranks * max(1, options["experts"] // ranks)
        options["choices"] = min(options["choices"], options["experts"])
    strategies[:] = [one for one in strategies if one["word"] != "expert_parallel"]
    strategies.append({"word": "expert_parallel", "options": {"over": over} if len(over) > 1 else {"axis": over[0]}})
    draw.random.shuffle(strategies)


def draw_optimizer(draw):
    word = draw.one("sgd", "sgd", "adamw", "adamw", "adam", "lion", "adafactor")
    options = {"lr": draw.one(0.1, 0.03) if word == "sgd" else 0.001 if word == "lion" else 0.01}
    if word == "adafactor":
        options["eps"] = [1e-3, 1e-3]  # a smaller bound makes updates of gradients that are zero but for rounding
    if draw.chance(0.1):
        options["lr"] = {"word": draw.one("cosine", "linear", "warmup"), "options": {"lr": options["lr"], "warmup": draw.between(0, 1)}}
    if word == "sgd" and draw.chance(0.4):
        options["momentum"] = 0.9
        options["nesterov"] = draw.chance(0.4)
    if draw.chance(0.3):
        options["weight_decay"] = 0.1
    if draw.chance(0.35):
        options["clip"] = draw.one(0.01, 0.3, 1.0, 100.0)
    if draw.chance(0.15):
        options["ema"] = draw.one(0.5, 0.99)
    return {"word": word, "options": options}


def draw_samples(draw, axes, micro):
    """Draws the global batch: samples per rank and microbatch times the ranks that divide it."""
    ranks = axes.get("dp", 1) * axes.get("dp2", 1) * axes.get("ep", 1)
    return ranks * micro * draw.one(1, 1, 1, 2, 3)


def draw_micro(draw, axes):
    if "pp" in axes:
        return draw.one(1, 2, 3, 4, 5, 6, draw.between(1, 2 * axes["pp"] + 2), draw.between(8, 26))
    return draw.one(1, 1, 1, 2, 3, 4, draw.between(5, 14))


def draw_data(draw, model, batch):
    if model["word"] in ("mlp", "odd"):
        options = {"batch": batch}
        if model["word"] == "odd":
            options.update(inputs=model["options"]["width"], outputs=model["options"]["width"])
        return {"word": "random", "options": options}
    options = {"path": "ids.bin", "batch": batch}
    if draw.chance(0.3):
        options["order"] = "epochs"
    if draw.chance(0.15):
        options["document_end"] = draw.between(0, 15)
    return {"word": "tokens", "options": options}


def break_something(draw, case):
    """Makes one size invalid, or unusual, so that prun must reject it or handle it."""
    options = case["model"]["options"]
    what = draw.one("batch", "heads", "context", "layers", "axis")
    if what == "batch":
        case["data"]["options"]["batch"] += 1
    elif what in options:
        options[what] = max(1, options[what] - 1)
    elif what == "axis" and len(case["strategies"]) > 1:
        case["strategies"].pop()


def draw_plan_options(draw, axes):
    options = {"micro": draw_micro(draw, axes), "steps": draw.one(1, 2, 2, 3, 3, 4, 6), "seed": draw.between(0, 5),
               "dtype": draw.one("f64", "f64", "f64", "f64", "f32", "bf16")}
    if draw.chance(0.1):
        options["reduce"] = "rank_order"
    return options


def draw_check(draw, dtype):
    """Draws options of prun for the check."""
    check = {"device": "cpu" if dtype != "f64" and draw.chance(0.6) else "reference"}
    if draw.chance(0.35):
        check["check_replicas"] = draw.between(1, 3)
    if draw.chance(0.12):
        check["most_skips"] = draw.one(1, 10)
    return check


def lower_steps(case):
    """Keeps a case fast and its values well conditioned: long schedules train few steps, signs of gradients decide the
    updates of lion, and AdamW magnifies the rounding of fast-growing values.
    """
    if case["optimizer"]["word"] == "lion":
        case["plan"]["steps"] = min(case["plan"]["steps"], 2)
    if case["model"]["options"].get("square"):
        case["optimizer"] = {"word": "sgd", "options": {"lr": 0.1}}
    if case["plan"]["micro"] > 6:
        case["plan"]["steps"] = min(case["plan"]["steps"], 2)


def drop_needless(draw, case):
    """Mostly removes offloading from plain SGD, which has no state to offload."""
    options = case["optimizer"]["options"]
    if case["optimizer"]["word"] == "sgd" and "momentum" not in options and not draw.chance(0.03):
        for one in case["strategies"]:
            for name in [name for name in one["options"] if name.startswith("offload")]:
                del one["options"][name]


def draw_case(seed):
    draw = Draw(seed)
    axes = draw_mesh(draw)
    strategies = draw_strategies(draw, axes)
    model = draw_model(draw, axes, strategies)
    adapt_strategies(draw, axes, strategies, model)
    fold_experts(draw, axes, strategies, model)
    plan = draw_plan_options(draw, axes)
    mesh = [[name, size] for name, size in axes.items()]
    draw.random.shuffle(mesh)
    case = {"mesh": mesh, "strategies": strategies, "model": model, "plan": plan, "optimizer": draw_optimizer(draw),
            "data": draw_data(draw, model, draw_samples(draw, axes, plan["micro"])), "check": draw_check(draw, plan["dtype"])}
    if draw.chance(0.25):
        case["eval"] = {"every": draw.between(1, 3), "batches": draw.between(1, 3)}
        if "ema" in case["optimizer"]["options"]:
            case["eval"]["ema"] = draw.chance(0.7)
    if draw.chance(0.25):
        case["report"] = {"every": draw.between(1, 3), "norms": True}
    lower_steps(case)
    if draw.chance(0.02) and ranks_of(case) * plan["micro"] <= 8 and case["optimizer"]["word"] != "lion":
        case["plan"]["steps"], case["check"]["check_replicas"] = draw.between(100, 110), 100
    drop_needless(draw, case)
    if draw.chance(0.03):
        break_something(draw, case)
    features.add_features(Draw(f"features {seed}"), case, chunks_of(strategies))
    return case


def ranks_of(case):
    ranks = 1
    for _, size in case["mesh"]:
        ranks *= size
    return ranks
