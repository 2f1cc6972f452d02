-- Mistakes that only values show, a law of placements each: with `wrong` the case is refused (tests/errors), without it
-- trains as one rank does (product_cases.cc). n: the ranks of each axis.

local prun = require "prun"

local arg = prun.args { case = { "tokens_summed", "a function below" }, wrong = false, n = 2 }

local cases = {}
local function gpt(options)
  local shape = { vocab = 256, layers = 2, width = 24, heads = 4, context = 8 }
  for name, value in pairs(options or {}) do shape[name] = value end
  return prun.models.gpt(shape)
end
local function reduces(name, options, body)
  return prun.strategy(name, { axis = options.axis or "dp" }, function(unit, opt)
    unit:after("backward", function() body(unit, opt) end)
  end, options.traits) {}
end
local function average(unit, opt) prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" }) end

-- Each rank's gradient is that of the mean over its own tokens: their average is due, not their sum.
function cases.tokens_summed()
  return { "cp" }, gpt(), { reduces("mine", { axis = "cp", traits = { splits = "tokens" } }, function(unit, opt)
    prun.all_reduce(unit.grads, { axis = opt.axis, op = arg.wrong and "sum" or "avg" })
  end) }
end

function cases.token_shards_summed()
  return { "cp" }, gpt(), { prun.strategy("mine", { axis = "cp" }, function(unit, opt)
    local full
    local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end
    unit.params:flat():place { [opt.axis] = "S(0)" }
    unit:before("forward", gather)
    unit:after("forward", function() prun.free(full) end)
    unit:before("backward", function() prun.ensure(full, gather) end)
    unit:after("backward", function()
      prun.free(full)
      prun.reduce_scatter(unit.grads, { axis = opt.axis, op = arg.wrong and "sum" or "avg", into = unit.grad_shard })
    end)
  end, { splits = "tokens" }) {} }
end

-- The same where weights are averaged between steps too.
function cases.summed_beside_an_average()
  return { "dp" }, gpt(), { prun.strategy("mine", { axis = "dp" }, function(unit, opt)
    unit:after("backward", function()
      prun.all_reduce(unit.grads, { axis = opt.axis, op = arg.wrong and "sum" or "avg" })
    end)
    unit:every(1, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
  end) {} }
end

-- Only what is one thing on all ranks of an axis has an average over it. Other stages hold other layers.
function cases.stages_averaged()
  local model = prun.models.mlp { inputs = 24, outputs = 24, width = 24, layers = 4 }
  return { "dp", "pp" }, model, { prun.pipeline { axis = "pp" }, prun.strategy("mine", { axis = "dp" }, function(unit)
    unit:every(1, function() prun.all_reduce(unit.params, { axis = arg.wrong and "pp" or "dp", op = "avg" }) end)
    if arg.wrong then unit:after("backward", function() prun.all_reduce(unit.grads, { axis = "dp" }) end) end
  end) {} }
end

function cases.gradients_of_stages_added()
  return { "dp", "pp" }, gpt(), { prun.pipeline { axis = "pp" }, reduces("mine", {}, function(unit, opt)
    average(unit, opt)
    if arg.wrong and #unit:find "qkv" > 0 then prun.all_reduce(unit.grads, { axis = "pp", op = "sum" }) end
  end) }
end

-- Ranks of ep hold other experts, those of tp other columns.
function cases.experts_averaged()
  local model = prun.models.moe { vocab = 256, layers = 2, width = 24, heads = 4, context = 8, experts = 4, choices = 2 }
  return { "ep" }, model, { prun.strategy("mine", { axis = "ep" }, function(unit, opt)
    for _, layer in ipairs(unit:find { "moe.up", "moe.down" }) do layer:place { [opt.axis] = "S(0)" } end
    unit:after("backward", function() average(unit, opt) end)
    if arg.wrong then unit:every(1, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end) end
  end) {} }
end

function cases.columns_averaged()
  return { "dp", "tp" }, gpt(), { prun.tensor_parallel { axis = "tp" }, prun.strategy("mine", { axis = "dp" }, function(unit)
    unit:every(1, function() prun.all_reduce(unit.params, { axis = arg.wrong and "tp" or "dp", op = "avg" }) end)
    if arg.wrong then unit:after("backward", function() prun.all_reduce(unit.grads, { axis = "dp" }) end) end
  end) {} }
end

local axes, model, strategies, data = cases[arg.case]()
for i, axis in ipairs(axes) do axes[i] = { axis, arg.n } end
return prun.plan {
  mesh      = prun.mesh(axes),
  model     = model,
  data      = data or (arg.case == "stages_averaged" and prun.data.random { batch = 24 }) or
              prun.data.bytes { path = "text/sample.txt", batch = 24 },
  strategy  = strategies,
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 3,
  steps     = 4,
  dtype     = "f64",
}
