-- prun.output("logits", x): names a tensor in a model's build, for prun predict --output NAME. It returns the tensor.

local graph = require "prun.graph"
local schema = require "prun.schema"

return schema.word("prun.output", {
  { name = "name", kind = "name", help = "by which --output asks for it" },
  { name = "x", kind = "tensor", help = "[samples, ..]: its first dim is that of the batch" },
}, function(name, x) return graph.output(name, x) end)
