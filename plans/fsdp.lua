-- A small GPT on a text file with FSDP: fully sharded, or in groups that are replicas (--set replicate=2, HSDP) or,
-- with reshard_after_forward=group, keep shards of what forward has gathered.

local prun = require "prun"

local arg = prun.shared_args {
  replicate = { 1, "groups of ranks", least = 1, tune = "divisors" },
  reshard_after_forward = { true, "gather parameters again for backward; group: within groups", choices = { "group" },
                            tune = "true,false" },
}

return prun.plan {
  mesh      = prun.mesh { replicate = arg.replicate, shard = prun.rest },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = {
    prun.fsdp { over = { "replicate", "shard" }, reshard_after_forward = arg.reshard_after_forward },
  },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
