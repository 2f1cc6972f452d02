-- Parts that Llama and Mixtral share: everything except the layers after a block's attention, and the options. Some are
-- for models of their family: Qwen2 (qkv_bias), SmolLM3 (unrotated), Starcoder2 (norm).

local prun = require "prun"
local nn = prun.nn

local parts = {}

local options = {
  vocab = { 256, "number of different tokens", least = 1 },
  layers = { 12, "number of transformer blocks", least = 1 },
  width = { 768, "size of a token's vector", least = 1 },
  heads = { 12, "attention heads in a block", least = 1 },
  kv_heads = { 0, "heads of keys and values, shared by the heads of queries; 0: as many as heads", least = 0 },
  head_size = { 0, "elements of a head; 0: the width over the heads", least = 0 },
  context = { 1024, "tokens in a sample", least = 1 },
  eps = { 1e-5, "added to the mean square in norms", above = 0 },
  norm = { "rmsnorm", "of a block's inputs and before the head", choices = { "rmsnorm", "layernorm" } },
  qkv_bias = { false, "add biases to q, k and v" },
  unrotated = { 0, "each n-th block has no rotary positions: 4 = the fourth, the eighth ..; 0 = none", least = 0 },
  tied = { false, "use the token embedding as the head's weights" },
  kernel = { "flash", "of attention, for prun sim (nn.attention)",
             choices = { "flash", "keep_scores", "recompute_scores" } },
  rope_type = { "default", "scaling of the rotary angles, for long contexts: transformers' rope_scaling",
                choices = { "default", "linear", "llama3" } },
  rope_factor = { 1.0, "of linear and llama3: angles become smaller by it", above = 0 },
  low_freq_factor = { 1.0, "of llama3: what turns less often in the original context becomes slower", above = 0 },
  high_freq_factor = { 4.0, "of llama3: what turns more often stays as it is", above = 0 },
  original_context = { 8192, "of llama3: the context before it was made longer", least = 1 },
}

-- Returns a model's own options and the shared ones.
function parts.options(own)
  for name, option in pairs(options) do own[name] = option end
  return own
end

local normal = { "normal", 0.02 }

-- Returns the initial values of residual projections, which keep the scale of the residual stream.
function parts.residual(opt) return { "normal", 0.02 / math.sqrt(2 * opt.layers) } end

function parts.embed(opt, batch)
  return nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { opt.vocab, opt.width }, normal))
  end)
end

function parts.norm(opt, name, x) return nn[opt.norm](name, x, opt.eps) end

-- Returns x plus its attention, within block i of the model called `model`.
function parts.attend(model, opt, i, x, batch)
  local width, heads, biased = opt.width, opt.heads, opt.attention_bias or false
  if opt.head_size == 0 and width % heads ~= 0 then
    host.fail(("the model %s: width %d is not divisible by %d heads"):format(model, width, heads))
  end
  local size = opt.head_size > 0 and opt.head_size or width // heads
  local kv_heads = opt.kv_heads > 0 and opt.kv_heads or heads
  local queries, shared, runs = heads * size, kv_heads * size, rawget(batch, "documents")  -- of packed data
  local qkv = nn.linear("qkv", parts.norm(opt, "ln1", x), queries + 2 * shared,
    { init = normal, bias = biased or opt.qkv_bias, blocks = { queries, shared, shared } })
  local rotated = opt.unrotated == 0 or (i + 1) % opt.unrotated ~= 0
  local turned = not rotated and qkv or nn.rotary(qkv, {
    size = size, heads = heads + kv_heads, base = opt.base,
    scaling = opt.rope_type == "default" and "none" or opt.rope_type, factor = opt.rope_factor,
    low_freq_factor = opt.low_freq_factor, high_freq_factor = opt.high_freq_factor,
    original_context = opt.original_context, positions = rawget(batch, "positions"),
  })
  local seen = nn.attention(turned, heads, { kv_heads = kv_heads, kernel = opt.kernel, documents = runs })
  return x + nn.linear("proj", seen, width, { init = parts.residual(opt), bias = biased })
end

-- Returns the loss.
function parts.head(opt, x, batch)
  if opt.tied then
    x = nn.unit("head", function() return parts.norm(opt, "ln", x) end)
    return nn.again("embed", function()
      local table = nn.parameter("token.weight", { opt.vocab, opt.width }, normal)
      return prun.losses.cross_entropy(nn.linear("logits", x, opt.vocab, { weight = table }), batch.targets)
    end)
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", parts.norm(opt, "ln", x), opt.vocab, { init = normal, bias = false })
    return prun.losses.cross_entropy(logits, batch.targets)
  end)
end

return parts
