-- nn.attention of separate q, k and v in each of its forms, on any mesh; `form` is a case below. With `scores` the same
-- attention is made of matmul, softmax and matmul.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  form = "plain", scores = { false, "compute by scores in memory" }, kv = 4, dtype = "f64", steps = 3, batch = 4,
  dp = 1, pp = 1, cp = 1, tp = 1, zero = 0, micro = 1, lr = 0.01, rule = { "adamw", choices = { "adamw", "sgd" } },
}
local width, heads, size, context = 32, 4, 8, 12

local rules = {
  plain = {}, all = { causal = false }, window = { window = 3 }, far = { causal = false, window = 4 },
  softcap = { softcap = 0.3, scale = 0.7 }, mask = {}, padding = { causal = false }, cross = { causal = false },
  value = {}, bias = {}, dropout = { dropout = 0.25 }, fused = {}, norms = {}, sliced = { window = 5 },
  joined = { window = 5 },
}

local function options(batch, q, k, v)
  local opt = { q = q, k = k, v = v, heads = heads, kv_heads = arg.kv }
  for name, value in pairs(rules[arg.form]) do opt[name] = value end
  if arg.form == "mask" then opt.mask = batch.mask:reshape { -1, context, context } end
  if arg.form == "padding" then opt.mask = batch.padding end
  if arg.form == "bias" then
    opt.bias = nn.parameter("bias", { heads, context, context }, { "normal", 0.5 })
  elseif arg.scores then
    opt.bias = nn.slice(q, -1, 0, 1):reshape { -1, 1, context, 1 } * 0
  end
  return opt
end

local function attention(batch, x, other)
  if arg.form == "sliced" or arg.form == "joined" then
    local blocks = { heads * size, arg.kv * size, arg.kv * size }
    local qkv = nn.linear("qkv", x, (heads + 2 * arg.kv) * size, { blocks = blocks })
    if arg.form == "sliced" then return nn.attention(qkv, heads, { kv_heads = arg.kv, window = 5 }) end
    local q, k, v = nn.split(qkv, blocks, -1)
    return nn.attention(options(batch, q, k, v))
  end
  local q = nn.linear("q", x, heads * size)
  local k = nn.linear("k", other, arg.kv * size)
  local v = nn.linear("v", other, arg.kv * (arg.form == "value" and 12 or size))
  if arg.form == "norms" then
    local function normed(name, y, count)
      return nn.rmsnorm(name, y:reshape { -1, context, count, size }):reshape { -1, context, count * size }
    end
    q, k = normed("q_norm", q, heads), normed("k_norm", k, arg.kv)
  end
  if arg.form ~= "cross" then q, k = nn.rotary(q, { size = size }), nn.rotary(k, { size = size }) end
  if arg.form == "fused" then
    return nn.attention(nn.concat({ q, k, v }, -1), heads, { kv_heads = arg.kv })
  end
  return nn.attention(options(batch, q, k, v))
end

local function model(batch)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { 64, width }, { "normal", 0.2 }))
  end)
  local encoded = arg.form == "cross" and nn.unit("encoder", function()
    return nn.embedding(batch.source, nn.parameter("source.weight", { 64, width }, { "normal", 0.2 }))
  end)
  for i = 0, 1 do
    x = nn.unit("block" .. i, function()
      local y = nn.layernorm("norm", x)
      return x + nn.linear("o", attention(batch, y, encoded or y), width)
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", x, 64), batch.labels, { ignore = -100 })
  end)
end

local strategies = {}
if arg.pp > 1 then strategies[#strategies + 1] = prun.pipeline { axis = "pp" } end
if arg.zero > 0 then
  strategies[#strategies + 1] = prun["zero" .. arg.zero] { axis = "dp" }
elseif arg.dp > 1 then
  strategies[#strategies + 1] = prun.ddp { axis = "dp" }
end
if arg.tp > 1 then
  strategies[#strategies + 1] = prun.tensor_parallel { axis = "tp", column = { "q", "k", "v", "qkv" }, row = { "o" } }
end
if arg.cp > 1 then strategies[#strategies + 1] = prun.context_parallel { axis = "cp" } end

return prun.plan {
  mesh = prun.mesh { pp = arg.pp, dp = arg.dp, cp = arg.cp, tp = arg.tp },
  model = model,
  data = prun.data.arrays { inputs = { tokens = "tokens.npy", labels = "labels.npy", source = "source.npy",
                                       mask = "mask.npy", padding = "padding.npy" },
                            batch = arg.batch },
  strategy = strategies, optimizer = prun[arg.rule] { lr = arg.lr }, dtype = arg.dtype, micro = arg.micro,
  steps = arg.steps,
}
