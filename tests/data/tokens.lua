-- A small GPT on token files, for data_test.py.
local prun = require "prun"
local arg = prun.args { path = "tokens.bin", vocab = 300, order = "random", cp = 1, micro = 1, eval = 0, hold_out = 0.05,
                        steps = 4, own = "", dtype = "", skip = -1, seed = 0, ends = -1, tp = 1 }

local function source(path)
  return prun.data.tokens { path = path, batch = 8, order = arg.order, dtype = arg.dtype ~= "" and arg.dtype or nil,
                            skip_bytes = arg.skip >= 0 and arg.skip or nil,
                            document_end = arg.ends >= 0 and arg.ends or nil }
end

local own = arg.own ~= "" and source(arg.own) or nil

return prun.plan {
  mesh      = prun.mesh { dp = prun.rest, cp = arg.cp, tp = arg.tp },
  model     = prun.models.gpt { vocab = arg.vocab, layers = 1, width = 16, heads = 2, context = 32 },
  data      = source(arg.path),
  strategy  = { prun.ddp { axis = "dp" }, prun.context_parallel { axis = "cp" },
                prun.tensor_parallel { axis = "tp" } },
  eval      = arg.eval > 0 and prun.eval { every = arg.eval, batches = 2, data = own,
                                           hold_out = not own and arg.hold_out or nil } or nil,
  optimizer = prun.adamw { lr = 1e-3 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
}
