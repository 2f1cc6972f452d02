-- prun check PLAN
local prun = require "prun"
local model = prun.models.mlp { activation = "gelo" }
