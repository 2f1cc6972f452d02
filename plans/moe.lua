-- A small GPT with a mixture of experts on a text file: experts spread over ep, which also splits the batch with dp.

local prun = require "prun"

local arg = prun.shared_args {
  ep       = { 2, "ranks that spread the experts", least = 1, tune = "divisors" },
  experts  = { 4, "experts in a block", least = 1 },
  choices  = { 2, "experts that each token goes to", least = 1 },
  capacity = { math.huge, "room of an expert as a multiple of its even share; inf: enough for all" },
  dropless = { false, "rounds of the capacity for choices beyond it, instead of dropping them" },
  aux      = { 0.01, "weight of the load-balancing loss", least = 0 },
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.rest, ep = arg.ep },
  model     = prun.models.moe { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context, experts = arg.experts, choices = arg.choices,
                                capacity = arg.capacity, dropless = arg.dropless,
                                aux = arg.aux },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = {
    prun.ddp { axis = "dp" },
    prun.expert_parallel { axis = "ep" },
  },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
