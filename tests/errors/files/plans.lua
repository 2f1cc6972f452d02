-- Plans that cases share; a case passes only the fields that it tests.
local prun = require "prun"

local function completed(usual, given)
  for name, value in pairs(given) do usual[name] = value end
  return prun.plan(usual)
end

local plans = {}

-- A small language model, trained by one strategy over all ranks.
function plans.gpt(given)
  return completed({
    mesh      = given.mesh or prun.mesh { dp = prun.world },
    model     = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 },
    data      = prun.data.bytes { path = "text/sample.txt", batch = 8 },
    optimizer = prun.sgd { lr = 0.1 },
    steps     = 2,
  }, given)
end

-- A perceptron on random vectors; `model` may be a function of a few lines.
function plans.mlp(given)
  return completed({
    mesh      = given.mesh or prun.mesh { dp = prun.world },
    model     = prun.models.mlp { inputs = 8, outputs = 16, width = 8 },
    data      = prun.data.random { batch = 4, inputs = 8, outputs = 16 },
    optimizer = prun.sgd { lr = 0.1 },
  }, given)
end

return plans
