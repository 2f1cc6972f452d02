-- An encoder, and a decoder that attends to its result (Vaswani et al., 2017), with the norms first.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { folder = ".", batch = 8, vocab = 48, width = 32, heads = 4, layers = 2, dtype = "f32" }
local width, inputs = arg.width, {}
for name in ("sentences mask before after"):gmatch "%a+" do inputs[name] = arg.folder .. "/" .. name .. ".npy" end

local function attention(name, x, from, causal, mask)
  local function linear(part, y) return nn.linear(name .. part, y, width) end
  return linear("_proj", nn.attention { q = linear("_q", x), k = linear("_k", from), v = linear("_v", from),
                                        heads = arg.heads, causal = causal, mask = mask })
end

-- A layer of the encoder, or with `memory` of the decoder.
local function layer(x, mask, memory)
  local y = nn.layernorm("ln1", x)
  y = x + attention("self", y, y, memory ~= nil, not memory and mask or nil)
  if memory then y = y + attention("cross", nn.layernorm("ln2", y), memory, false, mask) end
  return y + nn.linear("down", nn.relu(nn.linear("up", nn.layernorm("ln3", y), 2 * width)), width)
end

local function embedded(ids, length)
  local function table_of(name, rows) return nn.parameter(name, { rows, width }, { "normal", 0.02 }) end
  return nn.embedding(ids, table_of("words.weight", arg.vocab), table_of("positions.weight", length))
end

return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = function(batch)
    local memory = nn.unit("source", function() return embedded(batch.sentences, 12) end)
    local x = nn.unit("target", function() return embedded(batch.before, 7) end)
    for i = 1, arg.layers do memory = nn.unit("encoder" .. i, function() return layer(memory, batch.mask) end) end
    for i = 1, arg.layers do x = nn.unit("decoder" .. i, function() return layer(x, batch.mask, memory) end) end
    x = nn.unit("head", function() return nn.linear("logits", nn.layernorm("ln", x), arg.vocab) end)
    return prun.losses.cross_entropy(x, batch.after)
  end,
  data = prun.data.arrays { inputs = inputs, batch = arg.batch }, strategy = { prun.zero2 { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 }, steps = 10, dtype = arg.dtype,
}
