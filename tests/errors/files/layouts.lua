-- A pipeline's layout is a text (--set layout="embed | ... | head").
local prun = require "prun"
local plans = require "plans"

local arg = prun.args { layout = "...", chunks = 1, recompute = -1, stages = false, pipeline = true }
local strategy = {
  prun.pipeline {
    axis = "pp",
    schedule = arg.chunks > 1 and "interleaved" or "1f1b",
    chunks = arg.chunks > 1 and arg.chunks or nil,
    layout = arg.layout,
    stages = arg.stages and { 1, 1 } or nil,
  },
}
if arg.recompute >= 0 then
  strategy[2] = prun.recompute { units = { "block" }, stages = { arg.recompute } }
end

return plans.gpt {
  mesh = prun.mesh { pp = prun.world },
  model = prun.models.gpt { vocab = 256, layers = 4, width = 32, heads = 2, context = 16 },
  strategy = arg.pipeline and strategy or { strategy[2] },
  micro = 2,
}
