-- Strategies with a mistake; --set case=NAME selects one.
local prun = require "prun"
local plans = require "plans"

local cases = {}

-- Activations are placed over an unknown axis.
function cases.activations_over_unknown_axis(unit, opt)
  unit.activations:place { tq = "S(1)" }
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- The weights of all units except the head are averaged.
function cases.drifting_unit_left_out(unit, opt)
  if unit.name ~= "head" then
    unit:every(4, function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
  else
    unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
  end
end

-- Weights are summed instead of averaged.
function cases.drifting_weights_added(unit, opt)
  unit:every(4, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "sum" }) end)
end

-- The interval is missing.
function cases.every_without_steps(unit, opt)
  unit:every(function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end

-- All slots of the pool remain in use.
function cases.gather_never_freed(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather" }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("backward", function()
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
  end)
end

-- Each rank would train separately.
function cases.gradients_never_reduced(unit, opt)
  unit:after("backward", function() prun.print("done") end)
end

-- The second average is redundant.
function cases.gradients_reduced_twice(unit, opt)
  unit:after("backward", function()
    prun.all_reduce(unit.grads, { axis = opt.axis })
    prun.all_reduce(unit.grads, { axis = opt.axis })
  end)
end

-- A hook reduces over an unknown axis.
function cases.hook_over_unknown_axis(unit, opt)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = "dq" }) end)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- A layer is placed over an unknown axis.
function cases.layer_over_unknown_axis(unit, opt)
  for _, layer in ipairs(unit:find "up") do layer:place { tq = "S(1)" } end
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- Freed before forward reads them.
function cases.parameters_freed_too_early(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather" }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", function()
    gather()
    prun.free(full)
  end)
  unit:after("backward", function()
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
  end)
end

-- Sharded, but never gathered.
function cases.parameters_never_gathered(unit, opt)
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:after("backward", function()
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
  end)
end

-- Weights may be averaged only between steps.
function cases.parameters_reduced_in_a_step(unit, opt)
  unit:after("backward", function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end

-- reduce_scatter requires sharded parameters.
function cases.reduce_scatter_of_whole(unit, opt)
  unit:after("backward", function()
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
  end)
end

-- The flat vector is placed over an unknown axis.
function cases.shard_over_unknown_axis(unit, opt)
  unit.params:flat():place { dq = "S(0)" }
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- all_reduce instead of reduce_scatter.
function cases.shards_all_reduced(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather" }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full) end)
  unit:before("backward", function() prun.ensure(full, gather) end)
  unit:after("backward", function()
    prun.free(full)
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
    prun.all_reduce(unit.grads, { axis = opt.axis })
  end)
end

-- Sharded parameters whose gradients are never reduced.
function cases.shards_without_reduce(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather" }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full) end)
  unit:before("backward", function() prun.ensure(full, gather) end)
  unit:after("backward", function() prun.free(full) end)
end

-- Gradients do not exist between steps.
function cases.sync_of_gradients(unit, opt)
  unit:every(4, function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- Weights are averaged over an unknown axis.
function cases.sync_over_unknown_axis(unit, opt)
  unit:every(2, function() prun.all_reduce(unit.params, { axis = "dq" }) end)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- Lanes after those of streams and axes are reserved for pipeline messages.
function cases.too_many_lanes(unit, opt)
  unit:after("backward", function()
    for i = 1, 40 do
      prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce" .. i })
    end
  end)
end

-- All units must use the same interval.
function cases.two_rhythms(unit, opt)
  unit:every(unit.name == "head" and 2 or 4, function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end

-- Diverges from one rank: the strategy does not declare that weights drift apart.
function cases.drifts_unsaid(unit, opt)
  unit:every(2, function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end

-- Equals one rank, but the strategy declares that weights drift apart.
function cases.gradients_averaged(unit, opt)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- Backward has not yet computed the gradients of the hook's unit.
function cases.reduced_before_backward(unit, opt)
  unit:before("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

function cases.scattered_after_forward(unit, opt)
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:after("forward", function() prun.reduce_scatter(unit.grads, { axis = opt.axis, into = unit.grad_shard }) end)
end

-- The loss is a mean over all ranks.
function cases.summed_gradients(unit, opt)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis, op = "sum" }) end)
end

local arg = prun.args { case = "", differs = "" }
local wrong = prun.strategy("wrong", { axis = "dp" }, cases[arg.case], { differs = arg.differs })

return plans.gpt { strategy = { wrong {} } }
