-- Experts over the axes of other strategies, and mistakes with them, selected by `case`.
local prun = require "prun"

local arg = prun.args { case = "" }
local dp, tp = prun.zero3 { axis = "dp" }, prun.tensor_parallel { axis = "tp" }
local function experts(over) return prun.expert_parallel(#over > 1 and { over = over } or { axis = over[1] }) end
local cases = {
  twice = function() return { "dp", "tp" }, { dp, tp, experts { "dp", "dp" } } end,
  two = function() return { "dp", "tp" }, { dp, tp, experts { "dp" }, experts { "dp" } } end,
  three = function()
    return { "dp", "cp", "tp" }, { dp, tp, prun.context_parallel { axis = "cp" }, experts { "dp", "cp", "tp" } }
  end,
  stages = function() return { "pp", "tp" }, { prun.pipeline { axis = "pp" }, tp, experts { "pp" } } end,
  groups = function()
    local grouped = prun.zero3 { over = { "node", "dp" }, reshard_after_forward = "group" }
    return { "node", "dp" }, { grouped, experts { "dp" } }
  end,
  averaged = function()
    local drifts = prun.strategy("local_sgd", { axis = "dp" }, function(unit, opt)
      unit:every(2, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
    end, { differs = "weights drift between averages" })
    return { "dp" }, { drifts {}, experts { "dp" } }
  end,
  six = function() return { "dp", "tp" }, { dp, tp, experts { "dp", "tp" } }, 6 end,
}
local axes, strategies, number = cases[arg.case]()
local mesh = {}
for i, axis in ipairs(axes) do mesh[i] = { axis, 2 } end

return prun.plan {
  mesh = prun.mesh(mesh),
  model = prun.models.moe { vocab = 256, layers = 2, width = 24, heads = 2, context = 8, experts = number or 8 },
  data = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy = strategies, optimizer = prun.sgd { lr = 0.1 }, steps = 1,
}
