-- Strategies with a mistake; --set case=NAME takes one of them.
local prun = require "prun"
local plans = require "plans"

local cases = {}

-- So are the activations.
function cases.activations_over_unknown_axis(unit, opt)
  unit.activations:place { tq = "S(1)" }
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- The weights of all units but the head are averaged.
function cases.drifting_unit_left_out(unit, opt)
  if unit.name ~= "head" then
    unit:every(4, function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
  else
    unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
  end
end

-- Weights are averaged, not added.
function cases.drifting_weights_added(unit, opt)
  unit:every(4, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "sum" }) end)
end

-- How often?
function cases.every_without_steps(unit, opt)
  unit:every(function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end

-- All slots of the pool stay taken.
function cases.gather_never_freed(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather" }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("backward", function()
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
  end)
end

-- Each rank would train on its own.
function cases.gradients_never_reduced(unit, opt)
  unit:after("backward", function() prun.print("done") end)
end

-- The second average is one too many.
function cases.gradients_reduced_twice(unit, opt)
  unit:after("backward", function()
    prun.all_reduce(unit.grads, { axis = opt.axis })
    prun.all_reduce(unit.grads, { axis = opt.axis })
  end)
end

-- A hook reduces over an axis that is not there.
function cases.hook_over_unknown_axis(unit, opt)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = "dq" }) end)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- A layer is placed over an axis that is not there.
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

-- Sharded, and nobody gathers.
function cases.parameters_never_gathered(unit, opt)
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:after("backward", function()
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
  end)
end

-- Weights are averaged between steps.
function cases.parameters_reduced_in_a_step(unit, opt)
  unit:after("backward", function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end

-- Nothing is sharded here.
function cases.reduce_scatter_of_whole(unit, opt)
  unit:after("backward", function()
    prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard, stream = "reduce" })
  end)
end

-- The flat vector is placed over an axis that is not there.
function cases.shard_over_unknown_axis(unit, opt)
  unit.params:flat():place { dq = "S(0)" }
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- all_reduce where reduce_scatter belongs.
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

-- Sharded parameters, gradients that nobody reduces.
function cases.shards_without_reduce(unit, opt)
  local full
  local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, stream = "gather" }) end
  unit.params:flat():place { [opt.axis] = "S(0)" }
  unit:before("forward", gather)
  unit:after("forward", function() prun.free(full) end)
  unit:before("backward", function() prun.ensure(full, gather) end)
  unit:after("backward", function() prun.free(full) end)
end

-- Between steps there are no gradients.
function cases.sync_of_gradients(unit, opt)
  unit:every(4, function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- Weights are averaged over an axis that is not there.
function cases.sync_over_unknown_axis(unit, opt)
  unit:every(2, function() prun.all_reduce(unit.params, { axis = "dq" }) end)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

-- Lanes behind those of streams and axes belong to messages of pipelines.
function cases.too_many_lanes(unit, opt)
  unit:after("backward", function()
    for i = 1, 40 do
      prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce" .. i })
    end
  end)
end

-- One rhythm for all.
function cases.two_rhythms(unit, opt)
  unit:every(unit.name == "head" and 2 or 4, function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end

-- Right, but for who wants what one rank would train: nobody says that weights drift apart.
function cases.drifts_unsaid(unit, opt)
  unit:every(2, function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end

-- Right, unless it says that weights drift apart.
function cases.gradients_averaged(unit, opt)
  unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
end

local arg = prun.args { case = "", differs = "" }
local wrong = prun.strategy("wrong", { axis = "dp" }, cases[arg.case], { differs = arg.differs })

return plans.gpt { strategy = { wrong {} } }
