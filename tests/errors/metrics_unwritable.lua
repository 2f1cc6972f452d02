-- prun PLAN --metrics /no/such/folder/m.jsonl
local prun = require "prun"

return prun.program(function() prun.barrier() end)
