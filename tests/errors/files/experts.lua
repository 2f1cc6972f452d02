-- Mistakes in the options of nn.moe, selected by `case`.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { case = "" }
local loads = {}
local options = {
  groups = { groups = 3 },
  kept = { groups = 4, groups_kept = 5 },
  few = { groups = 4, groups_kept = 1, choices = 3 },
  sigmoid_loads = { scores = "sigmoid", loads = loads },
  z_loads = { z = 0.1, loads = loads },
  scores = { scores = "tanh" },
  bias_rate = { bias_rate = -1e-3 },
  documents = { documents = "x" },
  choices = { loads = loads }, dropless = { dropless = true },
}
local moe = options[arg.case] or {}

return prun.plan {
  mesh = prun.mesh { tp = prun.world },
  model = function(batch)
    if moe.documents then moe.documents = batch.x end
    moe.experts = moe.experts or 8
    local y = nn.moe("moe", batch.x:reshape { -1, 2, 4 }, moe)
    if arg.case == "choices" then y = y + nn.moe("other", y, { experts = 8, choices = 1, loads = loads }) end
    local total = prun.losses.mean_square(y)
    return loads.counts and total + prun.losses.balance(loads) or total
  end,
  data = prun.data.random { inputs = 8, outputs = 8, batch = 8 },
  strategy = { prun.tensor_parallel { axis = "tp", column = {}, row = {}, rows = {},
                                      expert_column = arg.case == "whole" and {} or { "moe.gate", "moe.up" },
                                      expert_row = arg.case == "rank" and {} or { "moe.down" } } },
  optimizer = prun.sgd { lr = 0.1 }, steps = 1,
}
