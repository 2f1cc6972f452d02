-- The shape of Llama (Touvron et al. 2023): pre-norm blocks of RMSNorm, causal attention with rotary positions, and a
-- SwiGLU MLP; keys and values may be shared by several heads of queries. Units as gpt.lua has them.
--
-- Surprising fact: the three matrices of a SwiGLU have, at 8/3 of the width, as many elements as a gelu MLP's two at 4.

local prun = require "prun"
local nn = prun.nn

return prun.model("llama", {
  vocab = { 256, "number of different tokens", least = 1 },
  layers = { 12, "number of transformer blocks", least = 1 },
  width = { 768, "size of a token's vector", least = 1 },
  heads = { 12, "attention heads in a block", least = 1 },
  kv_heads = { 0, "heads of keys and values, shared by the heads of queries; 0: as many as heads", least = 0 },
  head_size = { 0, "elements of a head; 0: the width over the heads", least = 0 },
  hidden = { 0, "size inside the MLP; 0: 8/3 of the width, rounded up to a multiple of 8", least = 0 },
  context = { 1024, "tokens in a sample", least = 1 },
  base = { 10000.0, "of the rotary angles", least = 1 },
  eps = { 1e-5, "added to the mean square in norms", above = 0 },
  attention_bias = { false, "add biases to q, k, v and what follows attention" },
  mlp_bias = { false, "add biases in the MLP" },
  tied = { false, "use the token embedding as the head's weights" },
}, function(opt, batch)
  local width, heads, normal = opt.width, opt.heads, { "normal", 0.02 }
  if opt.head_size == 0 and width % heads ~= 0 then
    host.fail(("the model llama: width %d is not divisible by %d heads"):format(width, heads))
  end
  local residual = { "normal", 0.02 / math.sqrt(2 * opt.layers) }  -- so that the sum of all blocks keeps its scale
  local size = opt.head_size > 0 and opt.head_size or width // heads
  local kv_heads = opt.kv_heads > 0 and opt.kv_heads or heads
  local queries, shared, biased = heads * size, kv_heads * size, opt.attention_bias
  local parts = { queries, shared, shared }
  local hidden = opt.hidden > 0 and opt.hidden or math.ceil(width / 3) * 8

  local function linear(name, x, out, bias, init, blocks)
    return nn.linear(name, x, out, { init = init or normal, bias = bias, blocks = blocks })
  end

  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { opt.vocab, width }, normal))
  end)

  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local qkv = linear("qkv", nn.rmsnorm("ln1", x, opt.eps), queries + 2 * shared, biased, normal, parts)
      local turned = nn.rotary(qkv, { size = size, heads = heads + kv_heads, base = opt.base })
      local mixed = x + linear("proj", nn.attention(turned, heads, { kv_heads = kv_heads }), width, biased, residual)
      local inner = nn.rmsnorm("ln2", mixed, opt.eps)
      local gated = nn.silu_mul(linear("gate", inner, hidden, opt.mlp_bias), linear("up", inner, hidden, opt.mlp_bias))
      return mixed + linear("down", gated, width, opt.mlp_bias, residual)
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
    return prun.losses.cross_entropy(linear("logits", nn.rmsnorm("ln", x, opt.eps), opt.vocab, false), batch.targets)
  end)
end)
