-- prun check PLAN --set layer=8
local prun = require "prun"
local arg = prun.args {
  layers = 4,
  width = 64,
}
