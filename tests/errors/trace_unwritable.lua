-- prun PLAN --trace /no/such/folder/t.json
local prun = require "prun"

return prun.program(function() prun.barrier() end)
