"""Writes a case of random_plans.py as a readable, runnable Lua plan.

The plan has one argument: with `--set alone=true` it trains the same model on one rank, without strategies.
"""
import textwrap

STRATEGIES = {
    "local_sgd": """
        local local_sgd = prun.strategy("local_sgd", { axis = { "dp", "mesh axis" }, every = { 1, "steps" } }, function(unit, opt)
          unit:every(opt.every, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
        end, { differs = "weights drift between averages" })""",
    "small_whole": """
        local small_whole = prun.strategy("small_whole", { axis = { "dp", "mesh axis" }, below = { "8 KiB", "size" } }, function(unit, opt)
          local full
          local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather", prefetch = 1 }) end
          unit.params:flat { least = opt.below }:place { [opt.axis] = "S(0)" }
          unit:before("forward", gather)
          unit:after("forward", function() prun.free(full, { keep = unit.last }) end)
          unit:before("backward", function() prun.ensure(full, gather) end)
          unit:after("backward", function()
            prun.free(full)
            prun.reduce_scatter(unit.grads, { axis = opt.axis, into = unit.grad_shard, stream = "reduce" })
            prun.all_reduce(unit.grads, { axis = opt.axis, stream = "reduce" })
          end)
        end)""",
}

SCHEDULES = {
    "eager": """
        local eager = prun.schedule("eager", function(rank, ranks, micro)
          local warm, f, b = math.min(micro, 2 * (ranks - rank - 1)), 0, 0
          local function F() prun.forward(f);  f = f + 1 end
          local function B() prun.backward(b); b = b + 1 end
          for _ = 1, warm do F() end
          for _ = 1, micro - warm do F() B() end
          for _ = 1, warm do B() end
        end)""",
    "lifo": """
        local lifo = prun.schedule("lifo", function(_, _, micro)
          for i = 0, micro - 1 do prun.forward(i) end
          for i = micro - 1, 0, -1 do prun.backward(i) end
        end)""",
    "halves": """
        local halves = prun.schedule("halves", function(_, _, micro)
          for i = 0, micro - 1 do prun.forward(i) end
          for i = 0, micro - 1 do
            if i % 2 == 0 then prun.backward(i) else prun.backward_input(i) end
          end
          for i = 1, micro - 1, 2 do prun.backward_weight(i) end
        end)""",
    "random_order": """
        local random_order = prun.schedule("random_order", function(rank, ranks, micro)
          local state = ranks * 7919 + micro * 104729
          local function dice(n)
            state = (state * 1103515245 + 12345) % 2147483648
            return state // 65536 % n
          end
          local f, b, waiting, made = {}, {}, {}, nil
          local function run(stage, slot, microbatch)
            made = true
            if stage == rank then prun[slot](microbatch) end
          end
          for stage = 0, ranks - 1 do f[stage], b[stage], waiting[stage] = 0, 0, {} end
          repeat
            made = nil
            for _ = 1, 8 * ranks do
              local s, kind = dice(ranks), dice(4)
              if kind == 0 and f[s] < micro and (s == 0 or f[s - 1] > f[s]) then
                run(s, "forward", f[s])
                f[s] = f[s] + 1
              elseif kind < 3 and b[s] < f[s] and (s == ranks - 1 or b[s + 1] > b[s]) then
                run(s, kind == 1 and "backward" or "backward_input", b[s])
                if kind ~= 1 then table.insert(waiting[s], b[s]) end
                b[s] = b[s] + 1
              elseif kind == 3 and #waiting[s] > 0 then
                run(s, "backward_weight", table.remove(waiting[s], 1))
              end
            end
            local left = 0
            for s = 0, ranks - 1 do left = left + micro - b[s] + #waiting[s] end
          until left == 0
        end)""",
}


def value(of):
    if isinstance(of, bool):
        return "true" if of else "false"
    if isinstance(of, str):
        return f'"{of}"'
    if isinstance(of, list):
        return "{ " + ", ".join(value(each) for each in of) + " }" if of else "{}"
    if isinstance(of, dict):
        return call(of["word"], of["options"])
    return repr(of)


def table(options):
    return "{ " + ", ".join(f"{name} = {schedule_or_value(name, of)}" for name, of in options.items()) + " }"


def schedule_or_value(name, of):
    return of if name == "schedule" and of in SCHEDULES else value(of)


def call(word, options):
    if word == "raw":
        return options["text"]
    return f"{word if word in STRATEGIES else 'prun.' + word} {table(options)}"


def block_lines(parts, mixer, mlp):
    """Returns the Lua lines of a block: x -> y."""
    norm, after = parts["norm"], parts["after"]
    heads, kv_heads, size, width = parts["heads"], parts["kv_heads"], parts["size"], parts["width"]
    q, kv, bias = heads * size, kv_heads * size, value(parts["bias"])
    plus = "x + " if parts["residual"] else ""

    def normed(name, x):
        return f'nn.{norm}("{name}", {x})' if norm != "none" and not after else x

    def dropped(place, x):
        return f"nn.dropout({x}, {parts['drop_rate']})" if parts["drop"] == place else x

    lines = []
    turns, runs = (", positions = batch.positions", ", documents = batch.documents") if parts.get("documents") else ("", "")
    rules = parts.get("rules", "")
    if mixer and (rules or parts.get("separate")):
        given = normed("ln1", "x")
        lines.append(f"local given = {given}")
        for name, columns, count in (("q", q, heads), ("k", kv, kv_heads), ("v", kv, kv_heads)):
            made = f'nn.linear("{name}", given, {columns}, {{ bias = {bias} }})'
            turned = f"nn.rotary({made}, {{ size = {size}, heads = {count}{turns} }})"
            lines.append(f"local {name} = {turned if parts['rotary'] and name != 'v' else made}")
        lines.append(f"local seen = nn.attention {{ q = q, k = k, v = v, heads = {heads}, kv_heads = {kv_heads}, "
                     f"causal = {value(parts['causal'])}{rules}{runs} }}")
    elif mixer:
        blocks = f", blocks = {{ {q}, {kv}, {kv} }}" if parts["blocks"] else ""
        lines.append(f'local qkv = nn.linear("qkv", {normed("ln1", "x")}, {q + 2 * kv}, {{ bias = {bias}{blocks} }})')
        if parts["rotary"]:
            lines.append(f"qkv = nn.rotary(qkv, {{ size = {size}, heads = {heads + kv_heads}{turns} }})")
        lines.append(f"local seen = nn.attention(qkv, {heads}, {{ kv_heads = {kv_heads}, causal = {value(parts['causal'])}{runs} }})")
    if mixer:
        proj = dropped("residual", f'nn.linear("proj", seen, {width}, {{ bias = {bias} }})')
        lines.append(f"x = {plus}{proj}")
    if mlp in ("moe", "moe_gated"):
        capacity = f", capacity = {parts['capacity']}" if "capacity" in parts else ""
        capacity += ", dropless = true" if parts.get("dropless") else ""
        aux = f", aux = {parts['aux']}" if "aux" in parts else ""
        aux += runs + parts.get("router", "") + (", loads = loads" if "balance" in parts else "")
        lines.append(f'x = {plus}nn.moe("moe", {normed("ln2", "x")}, {{ hidden = {parts["hidden"]}, experts = {parts["experts"]}, '
                     f'choices = {parts["choices"]}, gated = {value(mlp == "moe_gated")}{capacity}{aux} }})')
    elif mlp != "none":
        lines.append(f'local h = {normed("ln2", "x")}')
        up = f'nn.linear("up", h, {parts["hidden"]}, {{ bias = {bias} }})'
        inner = f'nn.silu_mul(nn.linear("gate", h, {parts["hidden"]}, {{ bias = {bias} }}), {up})' if mlp == "swiglu" else f"nn.{mlp}({up})"
        down = dropped("residual", f'nn.linear("down", {dropped("inner", inner)}, {width}, {{ bias = {bias} }})')
        lines.append(f"x = {plus}{down}")
    if parts.get("square"):
        lines.append(f"x = x + x * x * {parts['square']}")
    if norm != "none" and after:
        lines.append(f'x = nn.{norm}("ln", x)')
    return lines


def head_lines(parts, weight):
    x = f'nn.{parts["norm"]}("ln", x)' if parts["head_norm"] and parts["norm"] != "none" else "x"
    given = f"weight = {weight}" if weight else "bias = false"
    smooth = ", { label_smoothing = 0.1 }" if parts.get("loss") == "smooth" else ""
    loss = f"prun.losses.cross_entropy(logits, batch.targets{smooth})"
    if parts.get("loss") == "l2":
        loss += ' + 1e-2 * prun.losses.l2 "*.weight"'
    if parts.get("loss") == "z":
        loss += ' + (0.1 * prun.losses.z_loss(logits)):named "z"'
    if "balance" in parts:
        loss += f" + {parts['balance']} * prun.losses.balance(loads)"
    return [f"local y = {x}", f'local logits = nn.linear("logits", y, {parts["vocab"]}, {{ {given} }})', f"return {loss}"]


def unit(name, lines, first="x = ", word="unit"):
    body = "\n".join("  " + line for line in lines)
    return [f"{first}nn.{word}({name}, function()", *body.split("\n"), "end)"]


def own_model(parts):
    table_of = f'nn.parameter("token.weight", {{ {parts["vocab"]}, {parts["width"]} }}, {{ "normal", {parts["strength"]} }})'
    places = f', nn.parameter("position.weight", {{ {parts["context"]}, {parts["width"]} }}, {{ "normal", 0.5 }})' if parts["positions"] else ""
    embedded = f"nn.embedding(batch.tokens, {table_of}{places})"
    if places and parts.get("documents"):
        embedded = f"nn.embedding(batch.tokens, {table_of}) + nn.embedding(batch.positions{places})"
    if parts["drop"] == "embed":
        embedded = f"nn.dropout({embedded}, {parts['drop_rate']})"
    lines = ["local x"] + (["local loads = {}"] if "balance" in parts else [])
    if parts["merged"]:
        body = [f"x = {embedded}"]
        body += block_lines(parts, parts["attention"], parts["mlp"])
        return lines + unit('"all"', body + head_lines(parts, ""), "return ")
    lines += unit('"embed"', [f"return {embedded}"])
    for layer in range(parts["layers"]):
        odd = parts["two_kinds"] and layer % 2 == 1
        name = f'"{"mix" if odd else "block"}{layer}"'
        lines += unit(name, block_lines(parts, parts["attention"] and not odd, parts["mlp"]) + ["return x"])
    if parts["tied"]:
        return lines + unit('"embed"', head_lines({**parts, "head_norm": False}, table_of), "return ", "again")
    return lines + unit('"head"', head_lines(parts, ""), "return ")


def model_text(model):
    options = model["options"]
    if model["word"] == "own":
        return "function(batch)\n" + textwrap.indent("\n".join(own_model(options)), "    ") + "\n  end"
    if model["word"] == "odd":
        return f'function(batch) return odd.{options["name"]}(batch, {options["width"]}, {options["layers"]}) end'
    return call("models." + model["word"], options)


def data_text(case):
    options = dict(case["data"]["options"])
    if case["model"]["word"] == "own":
        size = "capacity" if "pack" in options else "context"
        options.update({size: case["model"]["options"]["context"], "vocab": case["model"]["options"]["vocab"]})
    return call("data." + case["data"]["word"], options)


def declarations(case):
    lines = ['local prun = require "prun"']
    if case["model"]["word"] == "own" or case["optimizer"]["word"] == "raw":
        lines.append("local nn = prun.nn")
    if case["model"]["word"] == "odd":
        lines.append('local odd = require "odd_models"')
    lines.append("local arg = prun.args { alone = false }")
    used = [one["word"] for one in case["strategies"]] + [one["options"].get("schedule") for one in case["strategies"]]
    for name, text in {**STRATEGIES, **SCHEDULES}.items():
        if name in used:
            lines += ["", textwrap.dedent(text).strip()]
    return lines


def plan_text(case):
    mesh = ", ".join(f"{name} = {size}" for name, size in case["mesh"])
    ordered = "{ " + ", ".join(f'{{ "{name}", {size} }}' for name, size in case["mesh"]) + " }"
    mesh = "prun.mesh(" + ordered + ")" if mesh else "prun.mesh { dp = 1 }"
    lines = [*declarations(case), "", "return prun.plan {", f"  mesh = arg.alone and prun.mesh {{ dp = 1 }} or {mesh},",
             f"  model = {model_text(case['model'])},", f"  data = {data_text(case)},", "  strategy = arg.alone and {} or {"]
    lines += [f"    {call(one['word'], one['options'])}," for one in case["strategies"]]
    lines += ["  },", f"  optimizer = {call(case['optimizer']['word'], case['optimizer']['options'])},"]
    if "eval" in case:
        lines.append(f"  eval = {call('eval', case['eval'])},")
    lines += [f"  {name} = {text}," for name, text in case.get("extras", {}).items()]
    if "report" in case:
        lines.append(f"  report = {table(case['report'])},")
    lines.append("  " + ", ".join(f"{name} = {value(of)}" for name, of in case["plan"].items()) + ",")
    return "\n".join([*lines, "}"]) + "\n"
