-- A model whose sizes depend on each other, for proofs: heads that share keys and values, fused columns in blocks,
-- rotary positions on some heads, experts, and values that overflow.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  tp = 1, dp = 1, cp = 1, pp = 1, ep = 1, heads = 4, kv = 4, size = 8, width = 0, turned = 0, part = 0, context = 8,
  vocab = 256, hidden = 32, tied = false, sequence = false, experts = 0, capacity = 0.0, overflow = false, wire = "", micro = 1,
}
local H, KV, S = arg.heads, arg.kv, arg.size
local W = arg.width > 0 and arg.width or H * S

local function mlp(x)
  if arg.overflow then return x * x * 15 end
  if arg.experts == 0 then
    return nn.linear("down", nn.silu_mul(nn.linear("gate", x, arg.hidden), nn.linear("up", x, arg.hidden)), W)
  end
  local capacity = arg.capacity > 0 and arg.capacity or math.huge
  return nn.moe("moe", x, { experts = arg.experts, hidden = arg.hidden, capacity = capacity, aux = 0 })
end

local function model(batch)
  local tokens
  local x = nn.unit("embed", function()
    tokens = nn.parameter("token.weight", { arg.vocab, W }, { "normal", 0.5 })
    return nn.embedding(batch.tokens, tokens)
  end)
  for i = 0, arg.pp * 2 - 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln", x), (H + 2 * KV) * S, { blocks = { H * S, KV * S, KV * S } })
      qkv = nn.rotary(qkv, {
        size = S, part = arg.part > 0 and arg.part or nil, heads = arg.turned > 0 and arg.turned or H + KV,
      })
      x = x + nn.linear("proj", nn.attention(qkv, H, { kv_heads = KV }), W)
      return x + mlp(arg.overflow and x or nn.rmsnorm("ln2", x))
    end)
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", x, arg.vocab, { bias = false, weight = arg.tied and tokens or nil })
    return prun.losses.cross_entropy(logits, batch.targets)
  end)
end

local strategies = {
  arg.wire == "" and prun.ddp { axis = "dp" } or prun.zero2 { axis = "dp", wire = arg.wire },
  prun.expert_parallel { axis = "ep" },
  prun.context_parallel { axis = "cp" },
  prun.tensor_parallel { axis = "tp", sequence = arg.sequence },
}
if arg.pp > 1 then strategies[#strategies + 1] = prun.pipeline { axis = "pp" } end

return prun.plan {
  mesh = prun.mesh { pp = arg.pp, dp = arg.dp, ep = arg.ep, cp = arg.cp, tp = arg.tp },
  model = model,
  data = prun.data.bytes {
    path = "../../plans/text/sample.txt", batch = arg.dp * arg.ep * arg.micro * 2, context = arg.context,
  },
  strategy = strategies, micro = arg.micro,
  optimizer = prun.sgd { lr = 0.1 }, steps = 3,
}
