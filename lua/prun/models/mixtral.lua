-- The shape of Mixtral (Jiang et al. 2024): Llama's blocks with a mixture of SwiGLU experts in place of the MLP. Each
-- token goes to the experts that the router likes best, weighted by the softmax over these alone; none is dropped.
-- Units as gpt.lua has them.

local prun = require "prun"
local nn = prun.nn

return prun.model("mixtral", {
  vocab = { 256, "number of different tokens", least = 1 },
  layers = { 12, "number of transformer blocks", least = 1 },
  width = { 768, "size of a token's vector", least = 1 },
  heads = { 12, "attention heads in a block", least = 1 },
  kv_heads = { 0, "heads of keys and values, shared by the heads of queries; 0: as many as heads", least = 0 },
  head_size = { 0, "elements of a head; 0: the width over the heads", least = 0 },
  hidden = { 0, "size inside an expert; 0: 7/2 of the width, rounded up to a multiple of 8", least = 0 },
  experts = { 8, "experts in a block", least = 1 },
  choices = { 2, "experts that each token goes to", least = 1 },
  aux = { 0.001, "weight of the load-balancing loss", least = 0 },
  context = { 1024, "tokens in a sample", least = 1 },
  base = { 1e6, "of the rotary angles", least = 1 },
  eps = { 1e-5, "added to the mean square in norms", above = 0 },
  tied = { false, "use the token embedding as the head's weights" },
}, function(opt, batch)
  local width, heads, normal = opt.width, opt.heads, { "normal", 0.02 }
  if opt.head_size == 0 and width % heads ~= 0 then
    host.fail(("the model mixtral: width %d is not divisible by %d heads"):format(width, heads))
  end
  local residual = { "normal", 0.02 / math.sqrt(2 * opt.layers) }  -- so that the sum of all blocks keeps its scale
  local size = opt.head_size > 0 and opt.head_size or width // heads
  local kv_heads = opt.kv_heads > 0 and opt.kv_heads or heads
  local queries, shared = heads * size, kv_heads * size
  local parts = { queries, shared, shared }
  local hidden = opt.hidden > 0 and opt.hidden or math.ceil(width * 7 / 16) * 8

  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { opt.vocab, width }, normal))
  end)

  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local inner = nn.rmsnorm("ln1", x, opt.eps)
      local qkv = nn.linear("qkv", inner, queries + 2 * shared, { init = normal, bias = false, blocks = parts })
      local turned = nn.rotary(qkv, { size = size, heads = heads + kv_heads, base = opt.base })
      local seen = nn.attention(turned, heads, { kv_heads = kv_heads })
      local mixed = x + nn.linear("proj", seen, width, { init = residual, bias = false })
      return mixed + nn.moe("moe", nn.rmsnorm("ln2", mixed, opt.eps), {
        experts = opt.experts, choices = opt.choices, aux = opt.aux, hidden = hidden, gated = true,
        init = normal, down_init = residual,
      })
    end)
  end

  if opt.tied then
    x = nn.unit("head", function() return nn.rmsnorm("ln", x, opt.eps) end)
    return nn.again("embed", function()
      local table = nn.parameter("token.weight", { opt.vocab, width }, normal)
      return prun.losses.cross_entropy(nn.linear("logits", x, opt.vocab, { weight = table }), batch.targets)
    end)
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", nn.rmsnorm("ln", x, opt.eps), opt.vocab, { init = normal, bias = false })
    return prun.losses.cross_entropy(logits, batch.targets)
  end)
end)
