-- Small models (gpt, llama, moe) with which generate_test.py continues a text.

local prun = require "prun"

local arg = prun.args {
  model = { "gpt", "gpt, llama or moe" }, context = 32, tp = 1, steps = 5, batch = 8, data = "text/sample.txt",
  tied = false, kv_heads = 0, sequence = false, dtype = "f32", vocab = 256, loss = "cross_entropy", causal = true,
}

local sizes = { vocab = arg.vocab, layers = 2, width = 32, heads = 4, context = arg.context }
if arg.model == "llama" then sizes.kv_heads = arg.kv_heads end
if arg.model ~= "moe" then sizes.tied = arg.tied end

local nn = prun.nn
local function own(batch)  -- rejected by prun generate
  local x = nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 24 }, { "normal", 0.02 }))
  x = nn.attention(nn.linear("qkv", x, 72), 2, { causal = arg.causal })
  if arg.loss == "mean" then return prun.losses.mean(x) end
  return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets)
end

return prun.plan {
  mesh      = prun.mesh { dp = prun.rest, tp = arg.tp },
  model     = arg.model == "own" and own or prun.models[arg.model](sizes),
  data      = prun.data.bytes { path = arg.data, batch = arg.batch, context = arg.context },
  strategy  = { prun.tensor_parallel { axis = "tp", sequence = arg.sequence }, prun.ddp { axis = "dp" } },
  optimizer = prun.adamw { lr = 1e-2 },
  steps     = arg.steps,
  dtype     = arg.dtype,
}
