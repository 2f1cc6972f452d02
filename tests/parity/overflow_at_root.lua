-- Each rank's values are finite, but their sum, which only the root receives, is not.
local prun = require "prun"

return prun.program(function(_)
  prun.reduce(prun.full({ 5 }, 3e38, { dtype = "f32" }), "sum", 1)
end)
