-- Mixtures of experts with each option of their router, on packed documents too, for experts_test.py.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  pp = 1, dp = 1, cp = 1, ep = 1, tp = 1, zero = 0, micro = 1, batch = 8, steps = 3, dtype = "f64", sequence = false,
  folded = false,
  scores = "softmax", renormalise = true, scale = 1.0, groups = 1, kept = 1, shared = 0, gated = true, again = false,
  aux = 0.0, z = 0.0, bias_rate = 0.0, balance = 0.0, capacity = math.huge, documents = false, choices = 2,
  experts = 8, hidden = 12, dropless = false, l2 = false, twice = false,
}

local width, vocab, context = 16, 64, 16

local function model(batch)
  local runs, loads = rawget(batch, "documents"), arg.balance > 0 and {} or nil
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { vocab, width }, { "normal", 0.5 }))
  end)
  for i = 0, 1 do
    local function block()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln1", x), 3 * width, { blocks = { width, width, width } })
      local mixed = x + nn.linear("proj", nn.attention(qkv, 2, { documents = runs }), width)
      return mixed + nn.moe("moe", nn.rmsnorm("ln2", mixed), {
        experts = arg.experts, choices = arg.choices, hidden = arg.hidden, gated = arg.gated, shared = arg.shared,
        scores = arg.scores, renormalise = arg.renormalise, scale = arg.scale, groups = arg.groups,
        groups_kept = arg.groups > 1 and arg.kept or nil, aux = arg.aux, z = arg.z, capacity = arg.capacity, dropless = arg.dropless,
        bias_rate = arg.bias_rate, documents = runs, loads = loads, init = { "normal", 0.4 },
      })
    end
    x = nn.unit("block" .. i, block)
    if arg.twice then x = nn.again("block" .. i, block) end
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", nn.rmsnorm("ln", x), vocab, { bias = false })
    local text = prun.losses.cross_entropy(logits, batch.targets)
    if arg.l2 then return text + 1e-2 * prun.losses.l2 "*.weight" end
    return loads and text + (arg.balance * prun.losses.balance(loads)):named "balance" or text
  end)
end

local packed = arg.documents and { path = "documents.bin", batch = arg.batch, vocab = vocab, order = "epochs",
                                   pack = "documents", eot = 5, capacity = context }
local zero = { [0] = prun.ddp, prun.zero1, prun.zero2, prun.zero3 }
return prun.plan {
  mesh = prun.mesh { pp = arg.pp, dp = arg.dp, cp = arg.cp, ep = arg.ep, tp = arg.tp },
  model = model, metrics = "steps",
  data = packed and prun.data.tokens(packed) or
    prun.data.tokens { path = "tokens.bin", batch = arg.batch, vocab = vocab, context = context },
  strategy = {
    prun.pipeline { axis = "pp" }, zero[arg.zero] { axis = "dp" },
    prun.context_parallel { axis = "cp" },
    prun.expert_parallel(arg.folded and { over = { "ep", "cp" } } or { axis = "ep" }),
    prun.tensor_parallel { axis = "tp", sequence = arg.sequence },
    arg.again and prun.recompute { units = { "block" } } or nil,
  },
  optimizer = prun.adamw { lr = 1e-2, eps = 1e-3, clip = 1.0 },
  micro = arg.micro, steps = arg.steps, dtype = arg.dtype,
}
