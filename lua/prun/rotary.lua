-- nn.rotary: rotary position embeddings. Pairs of a head's elements are rotated by angles that grow with the position.
--
-- Surprising fact: heads after the first `heads` are unchanged, so that one op rotates q and k of a fused qkv.

local graph = require "prun.graph"
local schema = require "prun.schema"

local function size(name, help, more)
  local entry = { name = name, kind = "integer", least = 1, most = graph.most_elements, help = help }
  for key, value in pairs(more or {}) do entry[key] = value end
  return entry
end
local function positive(name, default, help)
  return { name = name, kind = "number", default = default, above = 0, optional = default == nil, help = help }
end

local options = {
  size("size", "elements of a head; even"),
  size("heads", "number of heads that are rotated, from the first one; by default all", { optional = true }),
  size("part", "elements of a head that turn, from the first; even; by default all", { optional = true }),
  { name = "interleaved", kind = "boolean", default = false,
    help = "elements 2i and 2i + 1 are a pair, as in GPT-J and Cohere, not i and i + size/2" },
  { name = "positions", kind = "tensor", optional = true,
    help = "positions of the tokens, i32 [B, T], such as batch.positions; by default 0, 1, 2 ..." },
  positive("base", 10000.0, "pair i turns by base^(-2i/size) a token"),
  { name = "scaling", kind = "text", default = "none", choices = { "none", "linear", "llama3", "yarn", "longrope" },
    help = "scaling of the angles, for contexts longer than the original one" },
  positive("factor", 1.0, "divides the angles that the scaling changes"),
  positive("low_freq_factor", 1.0, "llama3: pairs with fewer rotations in the original context are divided by factor"),
  positive("high_freq_factor", 4.0, "llama3: pairs with more rotations keep their angles"),
  size("original_context", "original context of llama3, yarn and longrope, in tokens", { default = 8192 }),
  positive("beta_fast", 32.0, "yarn: pairs with more rotations in the original context keep their angles"),
  positive("beta_slow", 1.0, "yarn: pairs with fewer rotations are divided by factor"),
  { name = "truncate", kind = "boolean", default = true,
    help = "yarn: the ramp between both begins and ends at whole pairs" },
  { name = "factors", kind = "numbers", optional = true, above = 0,
    help = "longrope: a factor for each pair: transformers' short_factor, or long_factor for longer samples" },
  positive("attention_factor", nil,
    "multiplies the rotated elements; by default 1, with yarn and longrope the papers' function of the factor"),
}

-- Attributes of a scaling: an option of the same name, or a function of the options.
local of_scaling = {
  none = {},
  linear = { "factor" },
  llama3 = { "factor", "low_freq_factor", "high_freq_factor", "original_context" },
  yarn = { "factor", "original_context", "beta_fast", "beta_slow" },
  longrope = { "factors" },
}

-- Returns the attention factor of transformers' modeling_rope_utils.py.
local function usual_attention_factor(opt)
  if opt.factor <= 1 then return 1.0 end
  if opt.scaling == "yarn" then return 0.1 * math.log(opt.factor) + 1 end
  if opt.scaling == "longrope" and opt.original_context > 1 then
    return math.sqrt(1 + math.log(opt.factor) / math.log(opt.original_context))
  end
  return 1.0
end

local function check_scaling(opt)
  local function place(name) return host.site_of_word(host.site("user"), name) end
  if opt.scaling == "longrope" and not opt.factors then
    host.fail("nn.rotary: the scaling 'longrope' needs 'factors', a number for each pair (short_factor or long_factor)",
      place "scaling")
  end
  if opt.factors and opt.scaling ~= "longrope" then
    host.fail(("nn.rotary: 'factors' belong to the scaling 'longrope', and it is '%s'"):format(opt.scaling),
      place "factors")
  end
end

local function attributes_of(opt, heads)
  local attrs = { size = opt.size, heads = heads, base = opt.base }
  if opt.part and opt.part ~= opt.size then attrs.part = opt.part end
  if opt.interleaved then attrs.interleaved = 1 end
  if opt.scaling ~= "none" then attrs.scaling = opt.scaling end
  for _, name in ipairs(of_scaling[opt.scaling]) do attrs[name] = opt[name] end
  if opt.scaling == "yarn" and not opt.truncate then attrs.whole_pairs = 0 end
  local factor = opt.attention_factor or usual_attention_factor(opt)
  if factor ~= 1 then attrs.attention_factor = factor end
  return attrs
end

return schema.word("prun.nn.rotary", {
  { name = "x", kind = "tensor", help = "[samples, tokens, heads·size ..]" },
  options = options,
  before = function() graph.here("nn.rotary") end,
}, function(x, opt)
  check_scaling(opt)
  local attrs = attributes_of(opt, opt.heads or graph.last_dim(x) // opt.size)
  if opt.positions then return (graph.op("rotary_at", { x, opt.positions }, attrs)) end
  return (graph.op("rotary", { x }, attrs))
end)
