-- The shape of Llama (Touvron et al. 2023): pre-norm blocks of RMSNorm, causal attention with rotary positions, and a
-- SwiGLU MLP; keys and values may be shared by several heads of queries. No biases. Units as gpt.lua has them.
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
  hidden = { 0, "size inside the MLP; 0: 8/3 of the width, rounded up to a multiple of 8", least = 0 },
  context = { 1024, "tokens in a sample", least = 1 },
  base = { 10000.0, "of the rotary angles", least = 1 },
  tied = { false, "use the token embedding as the head's weights" },
}, function(opt, batch)
  local width, heads, normal = opt.width, opt.heads, { "normal", 0.02 }
  if width % heads ~= 0 then
    host.fail(("the model llama: width %d is not divisible by %d heads"):format(width, heads))
  end
  local residual = { "normal", 0.02 / math.sqrt(2 * opt.layers) }  -- so that the sum of all blocks keeps its scale
  local size, kv_heads = width // heads, opt.kv_heads > 0 and opt.kv_heads or heads
  local shared = kv_heads * size
  local hidden = opt.hidden > 0 and opt.hidden or math.ceil(width / 3) * 8

  local function linear(name, x, out, init, blocks)
    return nn.linear(name, x, out, { init = init or normal, bias = false, blocks = blocks })
  end

  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { opt.vocab, width }, normal))
  end)

  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local qkv = linear("qkv", nn.rmsnorm("ln1", x), width + 2 * shared, normal, { width, shared, shared })
      local turned = nn.rotary(qkv, { size = size, heads = heads + kv_heads, base = opt.base })
      local mixed = x + linear("proj", nn.attention(turned, heads, { kv_heads = kv_heads }), width, residual)
      local inner = nn.rmsnorm("ln2", mixed)
      local gated = nn.silu_mul(linear("gate", inner, hidden), linear("up", inner, hidden))
      return mixed + linear("down", gated, width, residual)
    end)
  end

  if opt.tied then
    x = nn.unit("head", function() return nn.rmsnorm("ln", x) end)
    return nn.again("embed", function()
      local table = nn.parameter("token.weight", { opt.vocab, width }, normal)
      return prun.losses.cross_entropy(nn.linear("logits", x, opt.vocab, { weight = table }), batch.targets)
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(linear("logits", nn.rmsnorm("ln", x), opt.vocab), batch.targets)
  end)
end)
