-- The shape of GPT-2 (Radford et al. 2019): token and position embeddings, pre-norm blocks of causal attention and a
-- gelu MLP, a final norm, a head. Units: embed, block0 .. block<layers-1>, head.
--
-- Surprising fact: with a tied head the unit embed is called twice, first to embed and last to make the logits.

local prun = require "prun"
local nn = prun.nn

return prun.model("gpt", {
  vocab = { 256, "number of different tokens", least = 1 },
  layers = { 12, "number of transformer blocks", least = 1 },
  width = { 768, "size of a token's vector", least = 1 },
  heads = { 12, "attention heads in a block", least = 1 },
  context = { 1024, "tokens in a sample", least = 1 },
  dropout = { 0.0, "share of embeddings and block results that are dropped", least = 0, below = 1 },
  tied = { false, "use the token embedding as the head's weights" },
}, function(opt, batch)
  local width, thirds, normal = opt.width, { opt.width, opt.width, opt.width }, { "normal", 0.02 }
  local residual = { "normal", 0.02 / math.sqrt(2 * opt.layers) }  -- so that the sum of all blocks keeps its scale

  local function drop(y) return opt.dropout > 0 and nn.dropout(y, opt.dropout) or y end

  local x = nn.unit("embed", function()
    local table = nn.parameter("token.weight", { opt.vocab, width }, normal)
    local positions = nn.parameter("position.weight", { opt.context, width }, normal)
    return drop(nn.embedding(batch.tokens, table, positions))
  end)

  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.layernorm("ln1", x), 3 * width, { init = normal, blocks = thirds })
      local mixed = x + drop(nn.linear("proj", nn.attention(qkv, opt.heads), width, { init = residual }))
      local up = nn.gelu(nn.linear("up", nn.layernorm("ln2", mixed), 4 * width, { init = normal }))
      return mixed + drop(nn.linear("down", up, width, { init = residual }))
    end)
  end

  if opt.tied then
    x = nn.unit("head", function() return nn.layernorm("ln", x) end)
    return nn.again("embed", function()
      local table = nn.parameter("token.weight", { opt.vocab, width }, normal)
      return prun.losses.cross_entropy(nn.linear("logits", x, opt.vocab, { weight = table }), batch.targets)
    end)
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", nn.layernorm("ln", x), opt.vocab, { init = normal, bias = false })
    return prun.losses.cross_entropy(logits, batch.targets)
  end)
end)
