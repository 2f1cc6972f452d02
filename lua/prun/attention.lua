-- nn.attention(qkv, heads, { .. }) of a fused qkv, and nn.attention { q = q, k = k, v = v, .. } of separate tensors.
--
--      given                                        recorded
--      a fused qkv, causal or not                   attention: fused kernels, ring attention under context parallelism
--      separate tensors, mask, window, softcap,     attend: fused kernels, no [T, S] scores in memory
--      documents, or a fused qkv with these
--      bias, dropout, or a mask for each head       matmul, softmax, matmul: the scores are in memory

local arithmetic = require "prun.arithmetic"
local graph = require "prun.graph"
local schema = require "prun.schema"
local tensor = require "prun.tensor"
local views = require "prun.views"

local shown = "nn.attention"

local function fail(word, message, ...)
  host.fail(("nn.attention: " .. message):format(...), word and host.site_of_word(host.site("user"), word) or nil)
end

local causal = { name = "causal", kind = "boolean", default = true, help = "a token sees those before it and itself" }
local heads = { name = "heads", kind = "integer", least = 1, most = graph.most_elements,
                help = "heads of the queries" }
local kv_heads = { name = "kv_heads", kind = "integer", least = 1, most = graph.most_elements, optional = true,
                   help = "heads of keys and of values; by default as many" }
local rules = {
  { name = "mask", kind = "tensor", optional = true,
    help = "which keys count: [B, S], [B, T, S] or [B, 1, T, S] of ids or numbers, 0 hides a key" },
  { name = "documents", kind = "tensor", optional = true,
    help = "batch.documents, [B, T, 2]: the first key of a token's document and the one after its last" },
  { name = "window", kind = "integer", least = 1, most = graph.most_elements, optional = true,
    help = "a query sees only keys less than this many tokens away" },
  { name = "scale", kind = "number", above = 0, optional = true,
    help = "factor of the scores; by default 1 / sqrt(size)" },
  { name = "softcap", kind = "number", above = 0, optional = true,
    help = "scores become softcap · tanh(score / softcap), as in Gemma 2" },
  { name = "bias", kind = "tensor", optional = true,
    help = "added to the scores: [heads, T, S], such as relative positions, or [B, heads, T, S]" },
  { name = "dropout", kind = "number", least = 0, below = 1, default = 0.0,
    help = "share of the attention weights to zero" },
}

local function with_rules(entries)
  for _, entry in ipairs(rules) do entries[#entries + 1] = entry end
  return entries
end

local fused_arguments = {
  { name = "qkv", kind = "tensor", help = "queries, keys and values side by side" }, heads,
  before = function() graph.here(shown) end,
  options = with_rules {
    causal, kv_heads,
    { name = "kernel", kind = "text", default = "flash", choices = { "flash", "keep_scores", "recompute_scores" },
      help = "what prun sim counts: scores that the chip keeps, that memory keeps, or that backward makes again; " ..
        "ranks run flash" },
  },
}
local separate_options = schema.register("prun.nn.attention.separate", with_rules {
  { name = "q", kind = "tensor", help = "queries, [B, T, heads · size]" },
  { name = "k", kind = "tensor", help = "keys, [B, S, kv_heads · size]" },
  { name = "v", kind = "tensor", help = "values, [B, S, kv_heads · size of a value]" },
  heads, kv_heads,
  { name = "causal", kind = "boolean", optional = true, help = causal.help .. "; by default true if T is S" },
})

-- Returns q, k and v of a fused qkv.
local function parts_of(qkv, count, shared)
  local width = graph.last_dim(qkv)
  if width % (count + 2 * shared) ~= 0 then
    fail(nil, "qkv's last dim is %d, should be a multiple of %d: %d heads and twice %d", width, count + 2 * shared,
      count, shared)
  end
  local size = width // (count + 2 * shared)
  return views.split(qkv, { count * size, shared * size, shared * size }, -1)
end

-- Returns a mask as [B, S] or [B, T, S], or nil if it is one for each head.
local function flat_mask(mask)
  local shape = mask.shape
  if #shape < 4 then return mask end
  if #shape == 4 and shape[2] == 1 then return views.squeeze(mask, 1) end
  return nil
end

local function attend(opt, mask)
  local inputs = { opt.q, opt.k, opt.v }
  local attrs = { heads = opt.heads, kv_heads = opt.kv_heads, causal = opt.causal and 1 or 0, window = opt.window,
                  softcap = opt.softcap, scale = opt.scale }
  if opt.documents then inputs[#inputs + 1], attrs.spans = opt.documents, 1 end
  if mask then inputs[#inputs + 1], attrs.masked = mask, 1 end
  return (graph.op("attend", inputs, attrs, "attention", { "lse" }))
end

-- [B, S, heads · size] -> [B, count, S, size]; each of the heads is repeated for the queries' heads that share it.
local function in_heads(x, own, count)
  local batch, length = x.shape[1], x.shape[2]
  local size = graph.last_dim(x) // own
  local y = views.reshape(x, { batch, length, own, size })
  if own < count then
    y = views.expand(views.unsqueeze(y, 3), { -1, -1, -1, count // own, -1 })
    y = views.reshape(y, { batch, length, count, size })
  end
  return views.transpose(y, 1, 2)
end

-- Attention by its definition, with scores [B, heads, T, S] in memory.
local function by_scores(opt, reason)
  local shared = opt.kv_heads or opt.heads
  if opt.documents then
    fail("documents", "'documents' works without bias, dropout and masks for each head only")
  end
  for _, one in ipairs { { "q", opt.heads }, { "k", shared }, { "v", shared } } do
    if graph.last_dim(opt[one[1]]) % one[2] ~= 0 then
      fail(one[1], "%s has %d columns, which do not divide into %d heads", one[1], graph.last_dim(opt[one[1]]), one[2])
    end
  end
  if opt.heads % shared ~= 0 then fail("kv_heads", "%d heads cannot share %d kv_heads evenly", opt.heads, shared) end
  local q, k, v = in_heads(opt.q, opt.heads, opt.heads), in_heads(opt.k, shared, opt.heads),
    in_heads(opt.v, shared, opt.heads)
  local scores = arithmetic.matmul(q * (opt.scale or 1 / math.sqrt(graph.last_dim(q))), k, { transpose_b = true })
  if opt.softcap then scores = graph.op("tanh", { scores * (1 / opt.softcap) }) * opt.softcap end
  if opt.bias then scores = scores + opt.bias end
  if opt.mask then
    local mask = opt.mask
    if #mask.shape == 2 then mask = views.unsqueeze(views.unsqueeze(mask, 1), 1)
    elseif #mask.shape == 3 then mask = views.unsqueeze(mask, 1) end
    scores = arithmetic.where(mask, scores, -1e30)
  end
  local attrs = { causal = opt.causal and 1 or nil, window = opt.window, reason = reason }
  local weights = graph.op("softmax", { scores }, attrs, "softmax")
  if opt.dropout > 0 then
    local length, keys = weights.shape[3], weights.shape[4]
    weights = require("prun.nn").dropout(views.flatten(weights, 1, 2), opt.dropout)
    weights = views.reshape(weights, { -1, opt.heads, length, keys })
  end
  local y = views.transpose(arithmetic.matmul(weights, v), 1, 2)
  return views.flatten(y, 2, 3)
end

local function separate(opt)
  local length, keys = opt.q.shape[2], opt.k.shape[2]
  if opt.causal == nil then
    if length ~= keys then
      fail(nil, "q has %s tokens and k %s: an attention to other tokens needs 'causal' (false, most often)",
        tostring(length), tostring(keys))
    end
    opt.causal = true
  end
  local mask = opt.mask and flat_mask(opt.mask)
  local reason = opt.bias and "a bias" or opt.dropout > 0 and "dropout" or opt.mask and not mask and
    "a mask for each head"
  if reason then return by_scores(opt, reason) end
  return attend(opt, mask)
end

local fused = schema.word("prun.nn.attention", fused_arguments, function(qkv, count, opt)
  local plain = opt.dropout == 0
  for _, entry in ipairs(rules) do
    if entry.name ~= "dropout" and opt[entry.name] ~= nil then plain = false end
  end
  if plain then
    local attrs = { heads = count, causal = opt.causal and 1 or 0, kv_heads = opt.kv_heads }
    if opt.kernel ~= "flash" then attrs.kernel = opt.kernel end
    return (graph.op("attention", { qkv }, attrs, nil, { "lse" }))
  end
  opt.heads = count
  opt.q, opt.k, opt.v = parts_of(qkv, count, opt.kv_heads or count)
  return separate(opt)
end)

return function(first, ...)
  if type(first) ~= "table" or tensor.is(first) then return fused(first, ...) end
  graph.here(shown)
  if select("#", ...) > 0 then
    fail(nil, "takes 'qkv' and its heads, or one table: nn.attention { q = q, k = k, v = v, heads = 4 }")
  end
  return separate(schema.check("nn.attention", separate_options, first))
end
