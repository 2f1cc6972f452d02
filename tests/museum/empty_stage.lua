-- mistake: a pipeline with more stages than layers
-- happened: a layout whose last stage had no layers deadlocked
-- report: https://github.com/NVIDIA/Megatron-LM/issues/1852
-- law: division
-- others: a watchdog, after its timeout
-- ranks: 4
-- says: 4 pipeline ranks make 4 stages, and the model has 2 layers: a stage needs at least one
local prun, museum = require "prun", require "museum"


local split = museum.wrong and "layers" or "flops" -- by work, the head may be a stage of its own
return museum.plan {
  mesh = prun.mesh { pp = 4 }, micro = 4,
  strategy = { prun.pipeline { axis = "pp", split = split } }, -- here
}
