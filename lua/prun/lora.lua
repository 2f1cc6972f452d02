-- lora = prun.lora { match = "block*.qkv|block*.proj", rank = 8, alpha = 16 }: low-rank adapters (Hu et al. 2021). A
-- matching nn.linear computes x·W + b + alpha / rank · dropout(x)·A·B and trains A and B; all other parameters are
-- frozen, except those that `train` matches.

local parameter_names = require "prun.parameter_names"
local schema = require "prun.schema"

local entries = schema.register("prun.lora", {
  { name = "match", kind = "text",
    help = 'layers that get adapters, such as "block*.qkv|block*.proj": * is any characters' },
  { name = "rank", kind = "integer", default = 8, least = 1, most = 65536, help = "columns of A and rows of B" },
  { name = "alpha", kind = "number", default = 8.0, above = 0, help = "the adapter's output is times alpha / rank" },
  { name = "dropout", kind = "number", default = 0.0, least = 0, below = 1,
    help = "share of the adapter's inputs that are dropped" },
  { name = "train", kind = "text", optional = true,
    help = 'parameters that are trained in full besides, such as "head*"' },
})

return schema.constructor("prun.lora", entries, function(_, given)
  local site = host.site("user")
  local options = schema.check("prun.lora", entries, given, site)
  local result = { kind_of = "lora", options = options, site = site }
  for _, word in ipairs { "match", "train" } do
    if options[word] then
      local compiled, written = parameter_names.compile(options[word])
      if not compiled then
        host.fail(("prun.lora: '%s' %s"):format(word, written), host.site_of_word(site, word))
      end
      result[word] = { compiled = compiled, written = written }
    end
  end
  return result
end)
