-- prun PLAN --nproc 2 --transport smh+socket
local prun = require "prun"

return prun.program(function() prun.barrier() end)
