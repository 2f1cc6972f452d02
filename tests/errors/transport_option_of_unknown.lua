-- prun PLAN --nproc 2 --transport socket --transport-options sokcet.crc=1
local prun = require "prun"

return prun.program(function() prun.barrier() end)
