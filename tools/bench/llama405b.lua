-- The architecture of Llama 3.1 405B (Dubey et al. 2024) on 16,384 ranks: to plan and to prove, not to run. With
-- --set chunks=8 --set layout="embed | ... | head" it has the paper's 128 stages (section 3.3.2): the embedding alone,
-- 126 times one layer, the head alone.
local prun = require "prun"

local arg = prun.args { pp = 16, tp = 8, micro = 128, layers = 126, chunks = 1, layout = "" }

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest, tp = arg.tp },
  model     = prun.models.llama {
    vocab = 128256, layers = arg.layers, width = 16384, heads = 128, kv_heads = 8, hidden = 53248, context = 8192,
    base = 500000,
  },
  data      = prun.data.bytes { path = "text/sample.txt", batch = prun.world // (arg.pp * arg.tp) * arg.micro },
  strategy  = {
    prun.pipeline { axis = "pp", schedule = arg.chunks > 1 and "interleaved" or "1f1b", chunks = arg.chunks,
                    layout = arg.layout ~= "" and arg.layout or nil },
    prun.tensor_parallel { axis = "tp", sequence = true },
    prun.zero1 { axis = "dp" },
  },
  optimizer = prun.adamw { lr = 8e-5, clip = 1.0 },
  micro     = arg.micro,
  dtype     = "bf16",
}
