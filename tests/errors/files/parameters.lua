-- Mistakes in groups of parameters and in frozen ones; --set case=NAME selects one.
local prun = require "prun"
local plans = require "plans"
local nn = prun.nn

local groups = {
  matches_nothing = function() return { { match = "*.bais", decay = 0 }, prun.adamw {} } end,
  unit_misspelt = function() return { { dims = 1, decay = 0 }, { match = "embd*", lr = 0.1 }, prun.adamw {} } end,
  dims_of_nothing = function() return { { dims = 3, decay = 0 }, prun.adamw {} } end,
  no_optimizer = function() return { { match = "*.bias", decay = 0 } } end,
  optimizer_first = function() return { prun.adamw {}, { match = "*.bias", decay = 0 } } end,
  of_a_group = function() return { "*.bias", prun.adamw {} } end,
  matches_by_nothing = function() return { { decay = 0 }, prun.adamw {} } end,
  weight_decay = function() return { { match = "*.bias", weight_decay = 0 }, prun.adamw {} } end,
  option_misspelt = function() return { { mach = "*.bias" }, prun.adamw {} } end,
  lr_negative = function() return { { match = "*.bias", lr = -1 }, prun.adamw {} } end,
  alternative_empty = function() return { { match = "*.bias|", decay = 0 }, prun.adamw {} } end,
  nested = function() return { { dims = 1, decay = 0 }, prun.groups { { dims = 2, lr = 2 }, prun.adamw {} } } end,
}

-- The second unit borrows the weight of the first one.
local function tied(batch)
  local w
  local x = nn.unit("first", function()
    w = nn.parameter("w", { 8, 8 }, { "normal", 0.1 })
    return nn.linear("in", batch.x, 8, { weight = w })
  end)
  return nn.unit("last", function() return prun.losses.mean_square(nn.linear("out", x, 8, { weight = w })) end)
end

-- The loss reads no result of the first unit.
local function apart(batch)
  nn.unit("first", function() return nn.linear("a", batch.x, 8) end)
  return nn.unit("last", function() return prun.losses.mean_square(nn.linear("b", batch.x, 8)) end)
end

local cases = {
  tied_twice = function()
    return plans.mlp {
      model     = tied,
      optimizer = prun.groups { { match = "first.w", decay = 0 }, { match = "last.*", lr = 0.1 }, prun.adamw {} },
    }
  end,
  frozen_nothing = function() return plans.gpt { frozen = "blok*" } end,
  frozen_second_alternative = function() return plans.gpt { frozen = "embed*|blok*" } end,
  frozen_all = function() return plans.gpt { frozen = "*" } end,
  frozen_number = function() return plans.gpt { frozen = 2 } end,
  loss_without_trained = function() return plans.mlp { model = apart, frozen = "last*" } end,
}

local name = prun.args { case = "" }.case
return cases[name] and cases[name]() or plans.gpt { optimizer = prun.groups(groups[name]()) }
