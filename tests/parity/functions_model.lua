-- Functions of elements between layers of tokens, with parameters that broadcast: one that is split with the columns of
-- its layer ("up.gain"), vectors, and single numbers. The norm is written out.

local prun = require "prun"
local nn = prun.nn

return prun.model("functions", { vocab = 256, layers = 2, width = 16, heads = 2, context = 8 }, function(shape, batch)
  local width, hidden = shape.width, 2 * shape.width
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { shape.vocab, width }, { "normal", 0.3 }))
  end)
  for i = 1, shape.layers do
    x = nn.unit("block" .. i, function()
      local up = nn.linear("up", x, hidden)
      local gain, offset = nn.parameter("up.gain", { hidden }, "ones"), nn.parameter("offset", { 1 })
      local y = nn.linear("down", up * nn.sigmoid(1.702 * up) * gain + offset, width)
      local norm = y * nn.rsqrt(nn.mean(y ^ 2, -1, { keep = true }) + 1e-5)
      local share = 1 / (1 + nn.exp(nn.parameter("share", { 1, 1 })))
      return x + share * norm * nn.parameter("gain", { width }, "ones")
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", nn.softplus(x) - 0.7, shape.vocab), batch.targets)
  end)
end)
