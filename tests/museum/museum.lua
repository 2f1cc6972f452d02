-- Shared by the exhibits: whether this run is the mistake or its corrected twin, and minimal plans. It is not an exhibit
-- itself.

local prun = require "prun"

local arg = prun.args { right = { false, "the corrected twin" } }

local museum = { wrong = not arg.right, text = prun.data.bytes { path = "text/sample.txt", batch = 8, context = 16 } }

-- Returns a GPT of two blocks; `given` overrides its shape.
function museum.gpt(given)
  local shape = { vocab = 256, layers = 2, width = 32, heads = 2, context = 16 }
  for name, value in pairs(given or {}) do shape[name] = value end
  return prun.models.gpt(shape)
end

-- Shards a unit's parameters over opt.axis, and gathers them before each phase.
function museum.gathered(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full) end)
  unit:before("backward", gather)
  unit:after("backward", function() prun.free(full) end)
end

-- Returns a plan; the defaults are that GPT on dp and plain SGD.
function museum.plan(given)
  local plan = { mesh = prun.mesh { dp = prun.rest }, model = museum.gpt(), data = museum.text,
                 optimizer = prun.sgd {} }
  for name, value in pairs(given) do plan[name] = value end
  return prun.plan(plan)
end

return museum
