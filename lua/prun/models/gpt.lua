-- The architecture of GPT-2 (Radford et al. 2019): token and position embeddings, pre-norm blocks of causal attention
-- and a gelu MLP, a final norm, a head. Units: embed, block0 .. block<layers-1>, head.
--
-- Surprising fact: with a tied head the unit embed is called twice, first for the embedding and last for the logits.

local prun = require "prun"
local nn = prun.nn

return prun.model("gpt", {
  vocab = { 256, "number of different tokens", least = 1 },
  layers = { 12, "number of transformer blocks", least = 1 },
  width = { 768, "size of a token's vector", least = 1 },
  heads = { 12, "attention heads in a block", least = 1 },
  context = { 1024, "tokens in a sample", least = 1 },
  positions = { 0, "rows of the table of positions; 0: as many as a sample has tokens", least = 0 },
  hidden = { 0, "size inside the MLP; 0: 4 times the width", least = 0 },
  eps = { 1e-5, "added to the variance in norms", above = 0 },
  gelu = { "tanh", "tanh (GPT-2's), none: the exact one, or relu instead (OPT)", choices = { "tanh", "none", "relu" } },
  kernel = { "flash", "of attention, for prun sim (nn.attention)",
             choices = { "flash", "keep_scores", "recompute_scores" } },
  dropout = { 0.0, "share of embeddings and block results that are dropped", least = 0, below = 1 },
  tied = { false, "use the token embedding as the head's weights" },
}, function(opt, batch)
  local width, eps, normal, at = opt.width, opt.eps, { "normal", 0.02 }, rawget(batch, "positions")  -- of documents
  local thirds, seen = { width, width, width }, { kernel = opt.kernel, documents = rawget(batch, "documents") }
  local residual = { "normal", 0.02 / math.sqrt(2 * opt.layers) }  -- keeps the scale of the residual stream

  local hidden, rows = opt.hidden > 0 and opt.hidden or 4 * width, opt.positions > 0 and opt.positions or opt.context
  if rows < opt.context then
    host.fail(("the model gpt: %d positions, and a sample has %d tokens (context)"):format(rows, opt.context))
  end
  local activate, form = nn[opt.gelu == "relu" and "relu" or "gelu"], opt.gelu ~= "relu" and opt.gelu or nil
  local function drop(y) return opt.dropout > 0 and nn.dropout(y, opt.dropout) or y end

  local x = nn.unit("embed", function()
    local table = nn.parameter("token.weight", { opt.vocab, width }, normal)
    local positions = nn.parameter("position.weight", { rows, width }, normal)
    if not at then return drop(nn.embedding(batch.tokens, table, positions)) end
    return drop(nn.embedding(batch.tokens, table) + nn.embedding(at, positions))
  end)
  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.layernorm("ln1", x, eps), 3 * width, { init = normal, blocks = thirds })
      local mixed = x + drop(nn.linear("proj", nn.attention(qkv, opt.heads, seen), width, { init = residual }))
      local up = activate(nn.linear("up", nn.layernorm("ln2", mixed, eps), hidden, { init = normal }), form)
      return mixed + drop(nn.linear("down", up, width, { init = residual }))
    end)
  end

  if opt.tied then
    x = nn.unit("head", function() return nn.layernorm("ln", x, eps) end)
    return nn.again("embed", function()
      local table = nn.parameter("token.weight", { opt.vocab, width }, normal)
      return prun.losses.cross_entropy(nn.linear("logits", x, opt.vocab, { weight = table }), batch.targets)
    end)
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", nn.layernorm("ln", x, eps), opt.vocab, { init = normal, bias = false })
    return prun.losses.cross_entropy(logits, batch.targets)
  end)
end)
