-- A small GPT on a text file on one rank: what zero3.lua and ddp.lua compute, without any communication.

local prun = require "prun"

local arg = prun.args {
  layers  = { 4, "transformer blocks", least = 1 },
  width   = { 256, "size of a token's vector", least = 1 },
  heads   = { 4, "attention heads in a block", least = 1 },
  context = { 128, "tokens in a sample", least = 1 },
  batch   = { 64, "samples in a step, over all ranks", least = 1 },
  steps   = { 20, "training steps", least = 1 },
  seed    = { 0, "of initial weights and the order of data" },
  data    = { "text/sample.txt", "any file; each byte is a token" },
  lr      = { 3e-4, "learning rate" },
  dtype   = { "f32", "f32, bf16 or f64" },
  reduce  = { "any", "rank_order: sums in the order of ranks, bit for bit" },
}

return prun.plan {
  mesh      = prun.mesh {},
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.dtype,
  reduce    = arg.reduce,
}
