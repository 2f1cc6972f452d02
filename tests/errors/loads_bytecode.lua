-- prun check PLAN
local stage = require "files.bytecode"
