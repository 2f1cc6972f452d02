-- prun PLAN --nproc 2 --transport sokcet
local prun = require "prun"

return prun.program(function() prun.barrier() end)
