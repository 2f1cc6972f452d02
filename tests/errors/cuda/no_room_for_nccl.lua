-- SPDLOG_LEVEL=warn PRUN_DEVICE_PATH=PLUGINS PRUN_SUBSTITUTE_MEMORY_MIB=64 PRUN_SUBSTITUTE_CONTEXT_MIB=8 PRUN_SUBSTITUTE_COMM_MIB=100 prun PLAN --device cuda --nproc 2 --transport nccl --transport-options library=PLUGINS/../libnccl_2_28.so,cudart=PLUGINS/../libnccl_2_28.so
local prun = require "prun"

return prun.program(function()
  prun.all_reduce(prun.full({ 1 << 20 }, 1))
end)
