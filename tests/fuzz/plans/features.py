"""Adds features to a case of random_plans.py: routers of experts, packed documents, frozen parameters, adapters, other
optimizers, layouts of stages, random schedules, and losses. Their draws come from a generator of their own, so that the
rest of a case does not depend on them.
"""

GATHERS = ("zero3", "fsdp", "small_whole")  # strategies that two slots at once cannot have
TOKEN_MODELS = ("gpt", "llama", "mixtral", "moe", "own")


def add_router(draw, case):
    """Draws options of nn.moe for models that call it."""
    parts = case["model"]["options"]
    if case["model"]["word"] != "own" or parts["mlp"] not in ("moe", "moe_gated") or not draw.chance(0.8):
        return
    router, experts = [], parts["experts"]
    if draw.chance(0.5):
        router.append('scores = "sigmoid"')
    if draw.chance(0.3):
        router.append("renormalise = false")
    if draw.chance(0.3):
        router.append("scale = 2.5")
    divisors = [n for n in range(2, experts + 1) if experts % n == 0]
    if divisors and draw.chance(0.5):
        groups = draw.of(divisors)
        least = -(-parts["choices"] // (experts // groups))
        router += [f"groups = {groups}", f"groups_kept = {draw.between(min(least, groups), groups)}"]
    if draw.chance(0.4):
        router.append(f"shared = {parts['hidden']}")
    if draw.chance(0.3):
        router.append("z = 0.1")
    if draw.chance(0.4):
        router.append(f"bias_rate = {draw.one(0.1, 0.01)}")
    if draw.chance(0.5):
        parts.update(capacity=draw.one(0.25, 0.5, 1.0, 1.25, 2.0), dropless=True)
    parts["router"] = "".join(", " + each for each in router)
    if draw.chance(0.2) and "sigmoid" not in parts["router"] and "z =" not in parts["router"]:
        parts["balance"] = 0.1
        parts.pop("aux", None)


def add_documents(draw, case):
    """Packs documents into the samples."""
    if case["model"]["word"] not in TOKEN_MODELS or not draw.chance(0.25):
        return
    options = case["data"]["options"]
    options.pop("document_end", None)
    options.pop("order", None)
    options.update(pack="documents", eot=draw.between(0, 15), long=draw.one("split", "truncate"))
    if case["model"]["word"] == "own":
        case["model"]["options"]["documents"] = True
    for one in case["strategies"]:
        if one["word"] == "context_parallel" and draw.chance(0.5) and not case["model"]["options"].get("drop") and \
                not case["model"]["options"].get("dropout"):
            one["options"]["share"] = "documents"


def add_masks(draw, case):
    parts = case["model"]["options"]
    if any(name == "cp" and size > 1 for name, size in case["mesh"]):
        return
    if case["model"]["word"] == "own" and draw.chance(0.15):
        parts["separate"] = True
        parts["rules"] = draw.one(", mask = nn.not_equal(batch.tokens, 3)", ", dropout = 0.2",
                                  ", mask = nn.not_equal(batch.tokens, 3), window = 2, softcap = 3.0")


def add_frozen(draw, case):
    """Freezes parameters, or trains adapters, of the library's models, whose names are known."""
    word = case["model"]["word"]
    if word not in ("gpt", "llama", "moe", "mixtral") or case["plan"]["steps"] > 20:  # adapters magnify rounding
        return
    tied, mlp = case["model"]["options"].get("tied"), "*.up*" if word in ("gpt", "llama") else "*moe*"
    if draw.chance(0.2):
        case["extras"]["frozen"] = '"' + draw.one("embed*", "block0.*", "*ln1*", "block*", "*qkv*", "*.proj*", mlp,
                                                  "embed*|block0.*", "embed*|block0.qkv*|block0.ln1*") + '"'
        if case["model"]["options"].get("aux") and case["extras"]["frozen"] == '"block*"':
            del case["extras"]["frozen"]  # a balancing loss of frozen layers is refused
    elif draw.chance(0.2):
        match = draw.one("block*.qkv|block*.proj", "block*.qkv", "*.proj" if tied else "*.proj|head.logits")
        dropout, train = draw.one("", "", ", dropout = 0.2"), draw.one("", "", ', train = "embed*|*ln*"')
        case["extras"]["lora"] = f'prun.lora {{ match = "{match}", rank = {draw.between(1, 4)}{dropout}{train} }}'
        if case["model"]["options"].get("aux"):
            del case["extras"]["lora"]


OWN_OPTIMIZER = """prun.optimizer {{ name = "mine", lr = 0.02, weight_decay = 0.1, state = {{ "m", "v" }}{clip},
    update = function(p, g, state, at)
      local m, v = 0.9 * state.m + g, nn.maximum(0.99 * state.v, g * g)
      return p - at.lr * (m / (nn.sqrt(v) + 0.01) + at.weight_decay * p) / (1 + 0.1 * at.t), {{ m = m, v = v }}
    end }}"""


def add_optimizer(draw, case):
    if case["model"]["word"] not in ("gpt", "llama", "moe", "mixtral") or not draw.chance(0.3):
        return
    if "eval" in case:
        case["eval"].pop("ema", None)
    clip, other = draw.one("", ", clip = 0.3"), draw.one("prun.sgd { lr = 0.1, momentum = 0.9 }", "prun.adamw { lr = 0.01, eps = 1e-3 }",
                                                           "prun.adafactor { lr = 0.01, eps = { 1e-3, 1e-3 } }")
    muon = f'prun.muon {{ lr = 0.02, adjust = "{draw.one("original", "match_rms_adamw", "spectral_unclamped")}"{clip} }}'
    text = draw.one(
        f'prun.groups {{ {{ dims = 1, optimizer = {other} }}, {{ match = "embed*|head*", optimizer = {other} }}, {muon} }}',
        f'prun.groups {{ {{ dims = 1, optimizer = {other} }}, {{ match = "embed*|head*", optimizer = {other} }}, {muon} }}',
        OWN_OPTIMIZER.format(clip=clip),
        f'prun.groups {{ {{ match = "*qkv*", lr = 0.5, decay = 0.2 }}, {{ dims = 1, decay = 0 }}, {other} }}')
    case["optimizer"] = {"word": "raw", "options": {"text": text}}
    for one in case["strategies"]:
        for name in [name for name in one["options"] if name.startswith("offload")]:
            del one["options"][name]


def unit_names(case):
    """Returns the classes of the units in order, or nothing for a model that a layout does not fit."""
    options = case["model"]["options"]
    if case["model"]["word"] not in TOKEN_MODELS or options.get("tied") or options.get("merged"):
        return []
    two = options.get("two_kinds")
    return ["embed"] + ["mix" if two and i % 2 else "block" for i in range(options["layers"])] + ["head"]


def add_stages(draw, case, chunks):
    """Draws a schedule, and what stages hold."""
    for one in case["strategies"]:
        if one["word"] != "pipeline":
            continue
        options, names = one["options"], unit_names(case)
        if draw.chance(0.2) and chunks == 1:
            options["schedule"] = "random_order"
        elif options["schedule"] == "zb_v" and not any(each["word"] in GATHERS for each in case["strategies"]):
            options["schedule"] = "dualpipe_v"
        stages = dict(case["mesh"])["pp"] * chunks
        if len(names) > 3 and draw.chance(0.3):
            options.pop("split", None)
            if draw.chance(0.3) and len(names) - 2 >= stages:
                cuts = sorted(draw.random.sample(range(1, len(names) - 2), stages - 1))
                options["stages"] = [to - at for at, to in zip([0, *cuts], [*cuts, len(names) - 2])]
                continue
            cuts = sorted(draw.between(1, len(names)) for _ in range(stages - 1))
            options["layout"] = " | ".join(" ".join(names[at:to]) for at, to in zip([0, *cuts], [*cuts, len(names)]))


def add_losses(draw, case):
    if case["model"]["word"] != "own" or not draw.chance(0.25):
        return
    parts = case["model"]["options"]
    parts["loss"] = draw.one("l2", "z", "smooth") if parts["mlp"] not in ("moe", "moe_gated") else draw.one("z", "smooth")


def add_recompute_stages(draw, case):
    if not any(name == "pp" for name, _ in case["mesh"]):
        return
    for one in case["strategies"]:
        if one["word"] == "recompute" and one["options"].get("units") == ["embed"] and draw.chance(0.5):
            one["options"]["stages"] = [0]


def add_features(draw, case, chunks):
    case["extras"] = {}
    for add in (add_router, add_documents, add_masks, add_frozen, add_optimizer, add_losses, add_recompute_stages):
        add(draw, case)
    add_stages(draw, case, chunks)
    if draw.chance(0.1):
        case["check"]["check_finite"] = 1
    if draw.chance(0.15):
        case["check"]["pad_vocabulary"] = draw.one(2, 8, 20)
