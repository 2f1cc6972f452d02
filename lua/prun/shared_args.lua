-- prun.shared_args { tp = { 2, "ranks that split weights" } }: the plan's own arguments, then those shared by all plans
-- of a language model, whose defaults the plan may override.

local args = require "prun.args"

local shared = {
  { name = "layers", kind = "integer", default = 4, least = 1, help = "transformer blocks" },
  { name = "width", kind = "integer", default = 256, least = 1, help = "size of a token's vector" },
  { name = "heads", kind = "integer", default = 4, least = 1, help = "attention heads in a block" },
  { name = "context", kind = "integer", default = 128, least = 1, help = "tokens in a sample" },
  { name = "batch", kind = "integer", default = 64, least = 1, help = "samples in a step, over all ranks" },
  { name = "micro", kind = "integer", default = 1, least = 1, help = "microbatches of a step",
    tune = "1,2,4,8,16,32" },
  { name = "steps", kind = "integer", default = 20, least = 1, help = "training steps" },
  { name = "seed", kind = "integer", default = 0, help = "of initial weights and the order of data" },
  { name = "data", kind = "text", default = "text/sample.txt", help = "any file; each byte is a token" },
  { name = "lr", kind = "number", default = 3e-4, help = "learning rate" },
  { name = "dtype", kind = "text", default = "f32", help = "f32, bf16 or f64" },
  { name = "reduce", kind = "text", default = "any", help = "rank_order: sums in the order of ranks, bit for bit" },
}

return function(defaults) return args(defaults or {}, shared) end
