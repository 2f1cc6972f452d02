-- prun PLAN --nnodes 2 --node-rank 2 --rendezvous 127.0.0.1:0
local prun = require "prun"

return prun.program(function() prun.barrier() end)
