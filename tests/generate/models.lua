-- Small models (gpt, llama, moe, one of separate layers and functions) with which generate_test.py continues a text.

local prun = require "prun"

local arg = prun.args {
  model = { "gpt", "gpt, llama, moe, functions or own" },
  context = 32, tp = 1, steps = 5, batch = 8, data = "text/sample.txt",
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

-- Norms of heads, keys with fewer heads, a gate, and a bias of functions of elements.
local function functions(batch)
  local function by_heads(name, x, count)
    local y = x:reshape { -1, arg.context, count, 8 }
    return nn.rotary(nn.rmsnorm(name, y):reshape { -1, arg.context, count * 8 }, { size = 8 })
  end
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 32 }, { "normal", 0.02 }))
  end)
  for i = 0, 1 do
    x = nn.unit("block" .. i, function()
      local y = nn.rmsnorm("norm", x)
      local q = by_heads("q_norm", nn.linear("q", y, 32), 4)
      local k, v = by_heads("k_norm", nn.linear("k", y, 16), 2), nn.linear("v", y, 16)
      y = x + nn.linear("proj", nn.attention { q = q, k = k, v = v, heads = 4, kv_heads = 2 }, 32)
      local gate, up = nn.split(nn.linear("both", y, 64), 32, -1)
      up = up * nn.sigmoid(1.702 * gate) * nn.parameter("gain", { 32 }, "ones")
      return y + nn.linear("last", up - nn.mean(up, -1, { keep = true }), 32)
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets)
  end)
end

return prun.plan {
  mesh      = prun.mesh { dp = prun.rest, tp = arg.tp },
  model     = arg.model == "own" and own or arg.model == "functions" and functions or prun.models[arg.model](sizes),
  data      = prun.data.bytes { path = arg.data, batch = arg.batch, context = arg.context },
  strategy  = { prun.tensor_parallel { axis = "tp", sequence = arg.sequence }, prun.ddp { axis = "dp" } },
  optimizer = prun.adamw { lr = 1e-2 },
  steps     = arg.steps,
  dtype     = arg.dtype,
}
