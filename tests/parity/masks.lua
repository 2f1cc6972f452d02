-- A small transformer on arrays or tokens whose loss ignores some targets, with weights and smoothing.
-- masks_test.py compares meshes, and whole batches with the samples that they consist of.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  data = { "arrays", "arrays, tokens or rows", choices = { "arrays", "tokens", "rows" } },
  ignore = -100, smoothing = 0.0, weighted = false, ends = -1, tied = false,
  dp = 1, cp = 1, tp = 1, pp = 1, zero = 0, schedule = "1f1b", micro = 1, batch = 8, order = "epochs",
  y = "", eval = "", dtype = "f64", steps = 3, lr = 0.1, vocab = 24,
}

local source
if arg.data == "tokens" then
  source = prun.data.tokens { path = "tokens.bin", batch = arg.batch, context = 8, vocab = arg.vocab, order = arg.order,
                              document_end = arg.ends >= 0 and arg.ends or nil }
else
  local x, y = arg.data == "rows" and "w.npy" or "x.npy", arg.data == "rows" and "labels.npy" or "y.npy"
  if arg.y ~= "" then y = arg.y end
  source = prun.data.arrays { x = x, y = y, batch = arg.batch, order = arg.order }
end

local function loss(logits, batch)
  return prun.losses.cross_entropy(logits, batch.targets, {
    ignore = arg.ignore ~= -100 and arg.ignore or nil, label_smoothing = arg.smoothing,
    weights = arg.weighted and batch.weights or nil,
  })
end

local function transformer(batch)
  local tokens = arg.data == "tokens" and batch.tokens or batch.x
  batch = { targets = arg.data == "tokens" and batch.targets or batch.y }
  local function table_of() return nn.parameter("token.weight", { arg.vocab, 16 }, { "normal", 0.5 }) end
  local x = nn.unit("embed", function() return nn.embedding(tokens, table_of()) end)
  for i = 0, 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln", x), 48, { blocks = { 16, 16, 16 } })
      return x + nn.linear("proj", nn.attention(qkv, 2), 16)
    end)
  end
  if arg.tied then
    return nn.again("embed", function()
      return loss(nn.linear("logits", x, arg.vocab, { weight = table_of() }), batch)
    end)
  end
  return nn.unit("head", function() return loss(nn.linear("logits", nn.rmsnorm("ln", x), arg.vocab), batch) end)
end

-- A label a sample, weighted by the sample's only number.
local function rows(batch)
  local y = nn.unit("layer", function() return nn.gelu(nn.linear("up", batch.x, 32)) end)
  return nn.unit("head", function()
    return loss(nn.linear("logits", y, arg.vocab), { targets = batch.y, weights = batch.x })
  end)
end

local zero = { [0] = prun.ddp, prun.zero1, prun.zero2, prun.zero3 }
return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = arg.dp, cp = arg.cp, tp = arg.tp },
  model     = arg.data == "rows" and rows or transformer,
  data      = source,
  eval      = arg.eval ~= "" and prun.eval { every = 1, batches = math.tointeger(tonumber(arg.eval)) or arg.eval,
                                             hold_out = 0.5 } or nil,
  strategy  = {
    prun.pipeline { axis = "pp", schedule = arg.schedule }, prun.context_parallel { axis = "cp" },
    prun.tensor_parallel { axis = "tp" }, zero[arg.zero] { axis = "dp" },
  },
  optimizer = prun.sgd { lr = arg.lr },
  micro     = arg.micro,
  steps     = arg.steps,
  dtype     = arg.dtype,
}
