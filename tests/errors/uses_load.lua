-- prun check PLAN
local f = load("return 1")
