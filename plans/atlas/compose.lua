-- Any model under any composition of strategies: each axis with a size gets its strategy, dp has the remaining ranks.
-- README.md has the commands.
--
--   prun plans/atlas/compose.lua --nproc 8 --set pp=2 --set tp=2 --set data_parallel=zero3

local prun = require "prun"

local arg = prun.args {
  model = { "gpt", "gpt, llama or moe" },
  pp = { 1, "pipeline stages" },
  replicate = { 1, "groups of ranks that hold the same shards (zero3 only)" },
  cp = { 1, "ranks over which the tokens of a sample are split" },
  ep = { 1, "ranks over which experts are split" },
  tp = { 1, "ranks over which weights are split" },
  data_parallel = { "ddp", "ddp, zero1, zero2 or zero3" },
  schedule = { "1f1b", "gpipe, 1f1b, interleaved, zb_h1 or zb_v" },
  split = { "layers", "layers or flops: what stages share equally" },
  chunks = { 0, "stages of a rank; 0: the schedule's" },
  sequence = { false, "tokens are split between the layers of tp" },
  recompute = { false, "keep only the inputs of blocks" },
  offload = { false, "optimizer state lives on the host" },
  persist_below = { "0 B", "smaller parameters stay whole (zero3)" },
  tied = { false, "the head is the token embedding (gpt, llama)" },
  dropout = { 0.0, "(gpt)" },
  kv_heads = { 0, "(llama)" },
  experts = { 4, "(moe)" }, choices = { 2, "(moe)" },
  optimizer = { "sgd", "adamw, lion, muon or sgd" }, lr = 0.1, clip = { 0.0, "bound of the norm of all gradients" },
  layers = 4, width = 24, heads = 4, vocab = 256, context = 12, batch = 24, micro = 1,
  eval = { 0, "an evaluation after every so many steps; 0: none" }, steps = 20, dtype = "f32",
}

local shape = { vocab = arg.vocab, layers = arg.layers, width = arg.width, heads = arg.heads, context = arg.context }
local of_model = {
  gpt = { tied = arg.tied, dropout = arg.dropout }, llama = { tied = arg.tied, kv_heads = arg.kv_heads },
  moe = { experts = arg.experts, choices = arg.choices },
}
for name, value in pairs(of_model[arg.model]) do shape[name] = value end

local optimizer = prun[arg.optimizer] { lr = arg.lr, clip = arg.clip }
if arg.optimizer == "muon" then
  local others = prun.adamw { lr = arg.lr }
  optimizer = prun.groups { { match = "embed*|head*", optimizer = others }, { dims = 1, optimizer = others },
                            optimizer }
end

local offload = arg.offload and "optimizer" or nil
local axes, strategies = {}, {}

local function axis(name, strategy)
  if arg[name] == 1 then return end
  axes[#axes + 1] = { name, arg[name] }
  strategies[#strategies + 1] = strategy
end

if arg.data_parallel == "zero3" then
  strategies[1] = prun.zero3 { axis = "dp", over = arg.replicate > 1 and { "replicate", "dp" } or nil,
                               persist_below = arg.persist_below, offload = offload }
else
  strategies[1] = prun[arg.data_parallel] { axis = "dp", offload = offload }
end
axis("pp", prun.pipeline { axis = "pp", schedule = arg.schedule, split = arg.split,
                           chunks = arg.chunks > 0 and arg.chunks or nil })
axis("replicate")
axes[#axes + 1] = { "dp", prun.rest }
axis("cp", prun.context_parallel { axis = "cp" })
axis("ep", prun.expert_parallel { axis = "ep" })
axis("tp", prun.tensor_parallel { axis = "tp", sequence = arg.sequence })
if arg.recompute then strategies[#strategies + 1] = prun.recompute {} end

return prun.plan {
  mesh      = prun.mesh(axes),
  model     = prun.models[arg.model](shape),
  data      = prun.data.bytes { path = "text/sample.txt", batch = arg.batch },
  strategy  = strategies,
  optimizer = optimizer,
  micro     = arg.micro,
  eval      = arg.eval > 0 and prun.eval { every = arg.eval } or nil,
  steps     = arg.steps,
  dtype     = arg.dtype,
}
