-- GPT-2 (Radford et al. 2019) with 124M parameters as llm.c and nanoGPT train it: tied head, vocabulary padded to
-- 50,304, AdamW with weight decay, clipped gradients. tools/bench/gpu_train.py runs it against PyTorch.

local prun = require "prun"

local arg = prun.args {
  layers  = { 12, "transformer blocks", least = 1 },
  width   = { 768, "size of a token's vector", least = 1 },
  heads   = { 12, "attention heads in a block", least = 1 },
  context = { 1024, "tokens in a sample", least = 1 },
  vocab   = { 50304, "number of different tokens", least = 1 },
  batch   = { 64, "samples in a step, over all ranks", least = 1 },
  micro   = { 1, "microbatches of a step", least = 1 },
  steps   = { 30, "training steps", least = 1 },
  data    = { "tokens.bin", "uint16 token ids" },
  lr      = { 6e-4, "learning rate" },
  dtype   = { "bf16", "f32 or bf16" },
}

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = arg.vocab, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context, tied = true },
  data      = prun.data.tokens { path = arg.data, batch = arg.batch },
  strategy  = { prun.ddp { axis = "dp" } },
  optimizer = prun.adamw { lr = arg.lr, betas = { 0.9, 0.95 }, weight_decay = 0.1, clip = 1.0 },
  micro     = arg.micro,
  steps     = arg.steps,
  dtype     = arg.dtype,
}
