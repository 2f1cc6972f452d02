-- Each rank's numbers are finite and their sum, which only the root has, is not.
local prun = require "prun"

return prun.program(function(_)
  prun.reduce(prun.full({ 5 }, 3e38, { dtype = "f32" }), "sum", 1)
end)
