-- prun check PLAN --set layers=many
local prun = require "prun"
local arg = prun.args {
  width = 64,
  layers = 4,
}
