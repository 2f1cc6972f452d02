-- A mixture of experts in a pipeline whose ranks run one microbatch's forward and another's backward at once, so that
-- the all-to-alls between experts hide behind compute (DualPipeV; --set schedule=zb_v compares).

local prun = require "prun"

local arg = prun.shared_args {
  pp       = { 2, "ranks of the pipeline", least = 1, tune = "divisors" },
  layers   = { 4, "transformer blocks, at least 2 a rank", least = 2 },
  experts  = { 4, "experts in a block", least = 1 },
  choices  = { 2, "experts that each token goes to", least = 1 },
  hidden   = { 0, "size inside an expert; 0: 4 * width", least = 0 },
  capacity = { math.huge, "room of an expert as a multiple of its even share; inf: enough for all" },
  schedule = { "dualpipe_v", "dualpipe_v, or zb_v: one after the other", tune = "dualpipe_v,zb_v" },
  micro    = { 8, "microbatches of a step", least = 1, tune = "1,2,4,8,16,32" },
}

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, ep = prun.rest },
  model     = prun.models.moe { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context, experts = arg.experts, choices = arg.choices,
                                hidden = arg.hidden, capacity = arg.capacity },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = {
    prun.pipeline { axis = "pp", schedule = arg.schedule },
    prun.expert_parallel { axis = "ep" },
  },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
