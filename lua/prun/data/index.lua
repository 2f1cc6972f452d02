-- prun.data.index: x [batch, 1] is the sample's global index, 0, 1, 2, ...: for plans whose numbers can be followed by
-- hand.

local data = require "prun.data"

return data.source("index", {
  entries = {},
  inputs = function() return { { "x", "", { 1 } } } end,
})
