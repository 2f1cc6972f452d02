-- prun.data.random: normal numbers x [batch, inputs] and y [batch, outputs], functions of the seed and the sample's
-- global index.

local data = require "prun.data"

return data.source("random", {
  entries = {
    { name = "inputs", kind = "integer", optional = true, least = 1, most = 70368744177664,
      help = "size of x; by default the model's" },
    { name = "outputs", kind = "integer", optional = true, least = 1, most = 70368744177664,
      help = "size of y; by default the model's" },
  },
  inputs = function(opt) return { { "x", "", { opt.inputs } }, { "y", "", { opt.outputs } } } end,
})
