-- An encoder as BERT: padded sentences, a mask that hides the padding, and the words to guess as labels.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { folder = ".", batch = 8, vocab = 48, width = 32, heads = 4, layers = 2, tokens = 12,
                        dtype = "f32" }

local function block(x, mask)
  local q, k, v = nn.linear("q", x, arg.width), nn.linear("k", x, arg.width), nn.linear("v", x, arg.width)
  local y = nn.attention { q = q, k = k, v = v, heads = arg.heads, causal = false, mask = mask }
  x = nn.layernorm("ln1", x + nn.linear("proj", y, arg.width))
  return nn.layernorm("ln2", x + nn.linear("down", nn.gelu(nn.linear("up", x, 4 * arg.width), "none"), arg.width))
end

return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = function(batch)
    local words
    local x = nn.unit("embed", function()
      words = nn.parameter("words.weight", { arg.vocab, arg.width }, { "normal", 0.02 })
      local places = nn.parameter("positions.weight", { arg.tokens, arg.width }, { "normal", 0.02 })
      return nn.layernorm("ln", nn.embedding(batch.sentences, words, places))
    end)
    for i = 0, arg.layers - 1 do
      x = nn.unit("block" .. i, function() return block(x, batch.mask) end)
    end
    return nn.unit("head", function()
      local y = nn.layernorm("ln", nn.gelu(nn.linear("dense", x, arg.width), "none"))
      local logits = nn.linear("logits", y, arg.vocab, { weight = words, bias = true })
      return prun.losses.cross_entropy(logits, batch.labels, { ignore = -100 })
    end)
  end,
  data = prun.data.arrays { batch = arg.batch, inputs = { sentences = arg.folder .. "/sentences.npy",
                                                  mask = arg.folder .. "/mask.npy",
                                                  labels = arg.folder .. "/labels.npy" } },
  strategy = { prun.zero1 { axis = "dp" } }, optimizer = prun.sgd { lr = 0.1 }, steps = 10, dtype = arg.dtype,
}
