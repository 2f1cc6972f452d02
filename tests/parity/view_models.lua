-- Models of views. mixer and joined read numbers, (batch, width, layers); heads and picks read tokens.

local prun = require "prun"
local nn = prun.nn

local views = { of_numbers = {}, of_tokens = {} }

-- An MLP-mixer with a class token (Tolstikhin et al. 2021): 24 numbers are an image [2, 4, 3], cut into two patches.
function views.of_numbers.mixer(batch, width, layers)
  local x = nn.unit("embed", function()
    local cut = batch.x:reshape { -1, 2, 2, 2, 3 }:permute { 0, 2, 1, 3, 4 }:flatten(2)
    local class = nn.parameter("class.weight", { width }, { "normal", 0.5 })
    return nn.concat({ class:expand { batch.x.shape[1], 1, width }, nn.linear("patch", cut, width) }, 1)
  end)
  for i = 1, layers do
    x = nn.unit("layer" .. i, function()
      local tokens = nn.gelu(nn.linear("linear", nn.layernorm("ln", x):transpose(1, 2), 7))
      x = x + nn.linear("back", tokens, 3):transpose(-1, -2)
      return x + nn.gelu(nn.linear("channels", x, width))
    end)
  end
  return prun.losses.mse(nn.unit("head", function() return nn.linear("out", x:slice(1, 0, 1):squeeze(1), 24) end),
                         batch.y)
end

-- Parts of a residual stream that several ops read, joined, stacked and padded again.
function views.of_numbers.joined(batch, width, layers)
  local x = batch.x
  for i = 1, layers do
    x = nn.unit("layer" .. i, function()
      local y = nn.gelu(nn.linear("linear", x, width))
      local a, b, c = nn.split(y:unflatten(-1, { 3, -1 }), 1, 1)
      local scale = nn.parameter("scale.weight", { 1, 1, 4 }, { "normal", 1 }):expand { a.shape[1], width // 12, 4 }
      local stacked = nn.stack({ a:squeeze(1), c:squeeze(1) * b:reshape { -1, width // 3 } }, 1)
      local padded = stacked:slice(2, 1, -2):pad(2, 2, 1, 0.5)
      local mixed = padded:flatten(1):reshape { -1, 2, width // 12, 4 }
      return x + nn.linear("out", nn.concat({ (mixed:slice(1, 1):squeeze(1) * scale):flatten(1), y }, -1), 24)
    end)
  end
  return prun.losses.mse(x, batch.y)
end

-- Columns as heads [batch, heads, tokens, size] between the layers that tp splits; logits of all tokens in one dim.
function views.of_tokens.heads(batch, opt)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { opt.vocab, opt.width }, { "normal", 0.5 }))
  end)
  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local up = nn.linear("up", nn.layernorm("ln", x), 2 * opt.width)
      local heads = up:unflatten(2, { opt.heads, -1 }):transpose(1, 2)
      local back = nn.gelu(heads):permute { 0, 2, 1, 3 }
      return x + nn.linear("down", back:flatten(2), opt.width)
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", nn.layernorm("ln", x), opt.vocab), batch.targets)
  end)
end

-- Functions of elements and reductions next to views: gates of heads, each centred over its own elements.
function views.of_tokens.gated(batch, opt)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { opt.vocab, opt.width }, { "normal", 0.5 }))
  end)
  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local up = nn.linear("up", nn.layernorm("ln", x), 2 * opt.width)
      local heads = up:unflatten(2, { opt.heads, -1 }):transpose(1, 2)
      local scale = nn.parameter("scale.weight", { 4 }, { "normal", 1 })
      local gate = nn.silu(heads - nn.mean(heads, -1, { keep = true })) * scale
      local back = (gate + nn.softmax(heads)):transpose(1, 2):flatten(2)
      return x + nn.linear("down", back, opt.width)
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", nn.layernorm("ln", x), opt.vocab), batch.targets)
  end)
end

-- Parts, permutations and repetitions that elementwise ops read with strides: both halves of a layer, whose columns tp
-- splits apart, heads of all tokens next to those of the first one, and scales of heads. Matmuls read heads of q, k and
-- v in one tensor, and write heads within rows.
function views.of_tokens.folded(batch, opt)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { opt.vocab, opt.width }, { "normal", 0.5 }))
  end)
  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local up = nn.linear("up", nn.layernorm("ln", x), 2 * opt.width, { blocks = { opt.width, opt.width } })
      local gate, value = nn.split(up, opt.width, -1)
      local y = nn.sigmoid(gate) * value
      local scale = nn.parameter("scale.weight", { 1, 1, 1, 2 }, { "normal", 1 })
      local heads = y:unflatten(2, { opt.heads, -1 })
      local first = heads:slice(1, 0, 1):squeeze(1):unsqueeze(2)
      local turned = heads:transpose(1, 2) * scale:expand { -1, -1, opt.context, -1 } + 0.5 * first
      x = x + nn.linear("down", turned:transpose(1, 2):flatten(2), opt.width)
      local q, k, v = nn.split(nn.linear("qkv", x, 3 * opt.width, { blocks = { opt.width, opt.width, opt.width } }),
                               opt.width, -1)
      local function in_heads(part) return part:unflatten(2, { opt.heads, -1 }):transpose(1, 2) end
      local weights = nn.softmax(nn.matmul(in_heads(q), in_heads(k):transpose(2, 3)))
      local a, b, c = nn.split(nn.linear("abc", x, 3 * opt.width, { blocks = { opt.width, opt.width, opt.width } }),
                               opt.width, -1)
      local again = c:unflatten(2, { opt.heads, -1 }):unsqueeze(2):squeeze(2):transpose(1, 2)  -- a reshape of a reshape
      x = x + nn.matmul(weights, in_heads(a) + in_heads(b) + again):transpose(1, 2):flatten(2)
      return x + nn.linear("out", nn.matmul(weights, in_heads(v)):transpose(1, 2):flatten(2), opt.width)
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", nn.layernorm("ln", x), opt.vocab), batch.targets)
  end)
end

-- Rows by ids: each token's own logit, and the first rows by tokens of a table that belongs to the sample.
function views.of_tokens.picks(batch, opt)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { opt.vocab, opt.width }, { "normal", 0.5 }))
  end)
  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local table = nn.linear("up", x, 2 * opt.vocab):unflatten(2, { opt.vocab, 2 }):transpose(2, 3):flatten(1, 2)
      local own = table:gather(batch.tokens:unsqueeze(1):expand { -1, 2 * opt.context, -1 })
      return x + nn.linear("down", nn.gelu(own):reshape { -1, opt.context, 2 * opt.context }, opt.width)
    end)
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", x, opt.vocab):flatten(0, 1)
    return prun.losses.mean(nn.gelu(logits:gather(batch.targets:reshape { -1, 1 })))
  end)
end

return views
