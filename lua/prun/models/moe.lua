-- The architecture of GPT-2 with a mixture of experts instead of each block's MLP (as in GShard and Mixtral, with gelu
-- experts). Units: embed, block0 .. block<layers-1>, head.

local prun = require "prun"
local nn = prun.nn

return prun.model("moe", {
  vocab = { 256, "number of different tokens", least = 1 },
  layers = { 12, "number of transformer blocks", least = 1 },
  width = { 768, "size of a token's vector", least = 1 },
  heads = { 12, "attention heads in a block", least = 1 },
  context = { 1024, "tokens in a sample", least = 1 },
  experts = { 4, "experts in a block", least = 1 },
  choices = { 2, "experts that each token goes to", least = 1 },
  hidden = { 0, "size inside an expert; 0: 4 * width", least = 0 },
  capacity = { math.huge, "room of an expert as a multiple of its even share; inf: enough for all", above = 0 },
  dropless = { false, "rounds of the capacity for choices beyond it, instead of dropping them" },
  aux = { 0.01, "weight of the load-balancing loss", least = 0 },
}, function(opt, batch)
  local width, thirds, normal = opt.width, { opt.width, opt.width, opt.width }, { "normal", 0.02 }
  local residual = { "normal", 0.02 / math.sqrt(2 * opt.layers) }  -- keeps the scale of the residual stream
  local at, seen = rawget(batch, "positions"), { documents = rawget(batch, "documents") }  -- of packed data
  local x = nn.unit("embed", function()
    local table = nn.parameter("token.weight", { opt.vocab, width }, normal)
    local positions = nn.parameter("position.weight", { opt.context, width }, normal)
    if not at then return nn.embedding(batch.tokens, table, positions) end
    return nn.embedding(batch.tokens, table) + nn.embedding(at, positions)
  end)
  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.layernorm("ln1", x), 3 * width, { init = normal, blocks = thirds })
      local mixed = x + nn.linear("proj", nn.attention(qkv, opt.heads, seen), width, { init = residual })
      return mixed + nn.moe("moe", nn.layernorm("ln2", mixed), {
        experts = opt.experts, choices = opt.choices, capacity = opt.capacity, aux = opt.aux,
        dropless = opt.dropless,
        hidden = opt.hidden > 0 and opt.hidden or nil,
        init = normal, down_init = residual, documents = seen.documents,
      })
    end)
  end

  return nn.unit("head", function()
    local logits = nn.linear("logits", nn.layernorm("ln", x), opt.vocab, { init = normal, bias = false })
    return prun.losses.cross_entropy(logits, batch.targets)
  end)
end)
