-- A program that needs 4 MiB of a device's memory.
local prun = require "prun"

return prun.program(function() prun.all_reduce(prun.full({ 1 << 20 }, 1)) end)
