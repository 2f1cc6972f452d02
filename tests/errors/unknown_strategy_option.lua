-- prun check PLAN --nproc 2
local prun = require "prun"
local strategy = prun.zero3 {
  axis = "dp",
  prefech = 2,
}
