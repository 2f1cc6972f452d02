-- A strategy of one's own: data parallelism whose gradients are sent as bf16, half the bytes, and accumulated in f32.

local prun = require "prun"

local compressed = prun.strategy("compressed", {
  axis = { "dp", "mesh axis over which the batch is split" },
  bucket = { "25 MiB", "size of a bucket of gradients" },
}, function(unit, opt)
  unit:after("backward", function()
    -- Cast, averaged (accumulated in f32) and cast back, all overlapped with backward on a separate stream.
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg", stream = "reduce", bucket = opt.bucket,
                                  wire = "bf16" })
  end)
end)

local arg = prun.shared_args()

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = { compressed { axis = "dp" } },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = arg.micro, steps = arg.steps, seed = arg.seed, dtype = arg.dtype, reduce = arg.reduce,
}
