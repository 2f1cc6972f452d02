-- prun check PLAN
local strategy = require "my_strategy"
