-- prun check PLAN
local prun = require "prun"
os.execute("rm -rf build")
