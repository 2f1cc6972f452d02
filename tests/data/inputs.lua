-- A small transformer on inputs by name, from arrays or from a feed. inputs_test.py and feed_test.py run it.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  from = { "arrays", "arrays or feed", choices = { "arrays", "feed" } },
  name = "", order = "given", last = "", labels = "labels.npy", kind = "int64", context = 8, eval = "",
  dp = 1, tp = 1, pp = 1, micro = 1, batch = 8, steps = 3, dtype = "f32", vocab = 24, wrong = "",
}

local last = arg.last ~= "" and arg.last or nil
local source
if arg.from == "feed" then
  source = prun.data.feed { name = arg.name, batch = arg.batch, inputs = {
    tokens = { arg.kind, arg.context }, labels = { "int64", arg.context }, weights = { "float32", arg.context } } }
else
  source = prun.data.arrays { batch = arg.batch, order = arg.order, last = last,
    inputs = { tokens = { "tokens_0.npy", "tokens_1.npy" }, labels = arg.labels, weights = "weights_*.npy" } }
end

local function model(batch)
  if arg.wrong ~= "" then return prun.losses.mean(batch[arg.wrong]) end
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { arg.vocab, 16 }, { "normal", 0.5 }))
  end)
  for i = 0, 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln", x), 48, { blocks = { 16, 16, 16 } })
      return x + nn.linear("proj", nn.attention(qkv, 2), 16)
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", nn.rmsnorm("ln", x), arg.vocab), batch.labels,
      { weights = batch.weights })
  end)
end

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = arg.dp, tp = arg.tp },
  model     = model,
  data      = source,
  eval      = arg.eval ~= "" and prun.eval { every = 2, hold_out = 0.25 } or nil,
  strategy  = { prun.pipeline { axis = "pp" }, prun.tensor_parallel { axis = "tp" }, prun.zero3 { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = arg.micro,
  steps     = arg.steps,
  dtype     = arg.dtype,
}
