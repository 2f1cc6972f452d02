-- A small transformer on inputs by name, from arrays or from a feed. inputs_test.py and feed_test.py run it.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  from = { "arrays", "arrays or feed", choices = { "arrays", "feed" } },
  name = "", order = "given", last = "", labels = "labels.npy", kind = "int64", context = 8, eval = "",
  dp = 1, cp = 1, tp = 1, pp = 1, micro = 1, batch = 8, steps = 3, dtype = "f32", vocab = 24, wrong = "",
  -- Also frames, numbers for each token, and side, as many numbers a sample as it has tokens.
  more = false, frames = "frames.npy", weights = "weights_*.npy", element = "float32", mask = "float32",
}

local last = arg.last ~= "" and arg.last or nil
local source
if arg.from == "feed" then
  source = prun.data.feed { name = arg.name, batch = arg.batch, inputs = {
    tokens = { arg.kind, arg.context }, labels = { "int64", arg.context }, weights = { arg.mask, arg.context },
    frames = arg.more and { arg.element, arg.context, 3 } or nil,
    side = arg.more and { "float32", arg.context } or nil } }
else
  source = prun.data.arrays { batch = arg.batch, order = arg.order, last = last,
    inputs = { tokens = { "tokens_0.npy", "tokens_1.npy" }, labels = arg.labels, weights = arg.weights,
               frames = arg.more and arg.frames or nil, side = arg.more and "side.npy" or nil } }
end

local function model(batch)
  if arg.wrong ~= "" then return prun.losses.mean(batch[arg.wrong]) end
  local x = nn.unit("embed", function()
    local rows = nn.embedding(batch.tokens, nn.parameter("token.weight", { arg.vocab, 16 }, { "normal", 0.5 }))
    return arg.more and rows + nn.linear("frames", batch.frames, 16) or rows
  end)
  for i = 0, 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln", x), 48, { blocks = { 16, 16, 16 } })
      return x + nn.linear("proj", nn.attention(qkv, 2), 16)
    end)
  end
  return nn.unit("head", function()
    local logits = prun.output("logits", nn.linear("logits", nn.rmsnorm("ln", x), arg.vocab))
    local loss = prun.losses.cross_entropy(logits, batch.labels, { weights = batch.weights })
    if not arg.more then return loss end
    local side = prun.output("side", nn.dropout(nn.linear("side", batch.side, arg.context), 0.25))
    local distance = prun.losses.mse(side, batch.side)
    return loss + 0.5 * distance, { side = distance }
  end)
end

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = arg.dp, cp = arg.cp, tp = arg.tp },
  model     = model,
  data      = source,
  eval      = arg.eval ~= "" and prun.eval { every = 2, hold_out = 0.25 } or nil,
  strategy  = { prun.pipeline { axis = "pp" }, prun.context_parallel { axis = "cp" },
                prun.tensor_parallel { axis = "tp" }, prun.zero3 { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  metrics   = arg.more and "steps" or nil,
  micro     = arg.micro,
  steps     = arg.steps,
  dtype     = arg.dtype,
}
