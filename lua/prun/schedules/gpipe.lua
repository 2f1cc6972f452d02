-- GPipe (Huang et al. 2019): forward of all microbatches, then backward of all. All activations are kept.

local prun = require "prun"

return prun.schedule("gpipe", function(_, _, micro)
  for i = 0, micro - 1 do prun.forward(i) end
  for i = 0, micro - 1 do prun.backward(i) end
end)
