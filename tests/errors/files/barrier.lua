-- A minimal program, for cases about the command line.
local prun = require "prun"

return prun.program(function() prun.barrier() end)
