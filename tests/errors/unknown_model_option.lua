-- prun check PLAN
local prun = require "prun"
local model = prun.models.gpt {
  layers = 2,
  head = 4,
}
