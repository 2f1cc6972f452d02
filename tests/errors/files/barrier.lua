-- What cases need that are about the command: a program that does next to nothing.
local prun = require "prun"

return prun.program(function() prun.barrier() end)
