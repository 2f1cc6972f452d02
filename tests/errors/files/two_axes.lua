-- Mistakes with parameters that two axes shard; --set case=NAME selects one.
local prun = require "prun"
local plans = require "plans"

local arg = prun.args { case = "" }
local mesh = arg.case == "group_without_over" and prun.mesh { dp = 4 } or prun.mesh { { "node", 2 }, { "dp", 2 } }

local function zero3(options) return function() return prun.zero3(options) end end

-- Returns the strategy of a user, which makes the mistake `wrong`.
local function own(wrong)
  return prun.strategy("own", { over = { "node", "dp" } }, function(unit, opt)
    local node, dp = opt.over[1], opt.over[2]
    local first, second = node, dp
    if wrong == "gathers" then first, second = dp, node end
    local placed, pieces, full = unit.params:flat()
    if wrong == "at_once" then placed:place { [node] = "S(0)", [dp] = "S(0)" } end
    placed:place { [dp] = "S(0)" }:place { [wrong == "same" and dp or node] = "S(0)" }
    local function gather()
      pieces = prun.all_gather(unit.params, { axis = first, stream = "gather" })
      if wrong == "freed" then prun.free(pieces) end
      full = prun.all_gather(wrong == "alike" and unit.params or pieces, { axis = second, stream = "gather" })
    end
    local function free()
      prun.free(full)
      if wrong ~= "freed" then prun.free(pieces) end
    end
    unit:before("forward", gather)
    unit:after("forward", free)
    unit:before("backward", gather)
    unit:after("backward", function()
      free()
      local function scatter(gradients, axis) prun.reduce_scatter(gradients, { axis = axis, into = unit.grad_shard }) end
      scatter(unit.grads, wrong == "scatters" and node or dp)
      if wrong == "forgets" then return end
      if wrong == "scatters_whole" then scatter(unit.grads, node) end
      scatter(unit.grad_shard, wrong == "twice" and dp or node)
    end)
  end) {}
end

local cases = {
  group_without_over = zero3 { reshard_after_forward = "group" },
  group_misspelt = zero3 { over = { "node", "dp" }, reshard_after_forward = "groups" },
  group_as_number = zero3 { over = { "node", "dp" }, reshard_after_forward = 8 },
}

return plans.gpt { mesh = mesh, strategy = { (cases[arg.case] or function() return own(arg.case) end)() } }
