-- A language model with every size as an argument, for configurations to simulate before they run:
-- a pipeline of stages, weights split over tp, tokens over cp, and data over dp, which has the remaining ranks.
--
--   prun sim plans/gpt.lua --cluster plans/clusters/dgx-a100.yaml --nproc 3072 \
--     --set layers=128 --set width=25600 --set heads=160 --set context=2048 --set vocab=51200 \
--     --set tp=8 --set pp=64 --set micro_size=1 --set batch=3072 --set recompute=full

local prun = require "prun"

local arg = prun.args {
  arch       = { "gpt", "gpt (GPT-2's shape) or llama", choices = { "gpt", "llama" } },
  layers     = { 4, "transformer blocks", least = 1 },
  width      = { 256, "size of a token's vector", least = 1 },
  heads      = { 4, "attention heads in a block", least = 1 },
  kv_heads   = { 0, "llama: heads of keys and values; 0: as many as heads", least = 0 },
  ffn        = { 0, "size inside the MLP; 0: the model's own share of the width", least = 0 },
  context    = { 128, "tokens in a sequence", least = 1 },
  vocab      = { 256, "number of different tokens", least = 1 },
  tp         = { 1, "ranks that split the weights", least = 1, tune = "node" },
  pp         = { 1, "ranks of the pipeline", least = 1, tune = "divisors" },
  chunks     = { 1, "stages of each rank; several are interleaved", least = 1, tune = "1,2,4" },
  schedule   = { "1f1b", "of the pipeline: 1f1b (interleaved where there are chunks), gpipe or zb_h1",
                 choices = { "1f1b", "gpipe", "zb_h1" }, tune = "1f1b,zb_h1" },
  split      = { "layers", "what the stages share equally: layers, or flops (which count the head, too)",
                 choices = { "layers", "flops" } },
  stages     = { {}, "layers of each stage, such as 3,5,5,3; empty: equal shares", least = 1 },
  cp         = { 1, "ranks that split the tokens of a sequence", least = 1 },
  sequence   = { false, "tp splits tokens between the layers, too", tune = "false,true" },
  zero       = { 0, "ZeRO's stage; 0: every rank has all that tp and pp leave it", least = 0, most = 3,
                 tune = "0,1,3" },
  micro_size = { 1, "sequences in a microbatch of a rank", least = 1, tune = "1,2,4,8" },
  batch      = { 8, "sequences in a step, over all ranks", least = 1 },
  recompute  = { "none", "what backward computes again: none, selective (attention's scores) or full (all of a block)",
                 choices = { "none", "selective", "full" }, tune = "none,selective,full" },
  dropout    = { 0.0, "gpt: share of embeddings and block results that are dropped", least = 0, below = 1 },
  flash      = { false, "for prun sim: devices have a kernel for attention that keeps no scores" },
  precision  = { "bf16", "bf16: compute in bf16, weights and optimizer state in f32, too; f32; f64",
                 choices = { "bf16", "f32", "f64" } },
  overlap    = { true, "reduce gradients beside backward; false: all behind it (zero = 0)" },
  prefetch   = { 1, "units whose parameters are gathered ahead of compute (zero = 3)", least = 0 },
  bucket     = { "25 MiB", "size of a bucket of gradients (zero = 0)", tune = "25 MiB,100 MiB" },
  steps      = { 20, "training steps", least = 1 },
  seed       = { 0, "of initial weights and the order of data" },
  data       = { "text/sample.txt", "any file; each byte is a token" },
  lr         = { 3e-4, "learning rate" },
  reduce     = { "any", "rank_order: sums in the order of ranks, bit for bit" },
}

local mesh = prun.mesh { pp = arg.pp, dp = prun.rest, cp = arg.cp, tp = arg.tp }

local function microbatches()
  local together = arg.micro_size * mesh.size_of.dp
  if arg.batch % together ~= 0 then
    error(("a batch of %d sequences is no multiple of %d: %d in a microbatch (micro_size) on each of %d ranks (dp)")
      :format(arg.batch, together, arg.micro_size, mesh.size_of.dp))
  end
  return arg.batch // together
end

local function attention_kernel()
  if arg.flash then return "flash" end
  return arg.recompute == "selective" and "recompute_scores" or "keep_scores"
end

local function model()
  local sizes = { vocab = arg.vocab, layers = arg.layers, width = arg.width, heads = arg.heads, context = arg.context,
                  hidden = arg.ffn, kernel = attention_kernel() }
  if arg.arch == "gpt" then
    if arg.kv_heads > 0 then error("kv_heads is of llama: gpt has keys and values for each of its heads") end
    sizes.dropout = arg.dropout
    return prun.models.gpt(sizes)
  end
  if arg.dropout > 0 then error("llama has no dropout") end
  sizes.kv_heads = arg.kv_heads
  return prun.models.llama(sizes)
end

local function data_parallel()
  if arg.zero == 1 then return prun.zero1 { axis = "dp" } end
  if arg.zero == 2 then return prun.zero2 { axis = "dp" } end
  if arg.zero == 3 then return prun.zero3 { axis = "dp", prefetch = arg.prefetch } end
  local bucket = arg.overlap and arg.bucket or "1000000 GiB"
  return prun.ddp { axis = "dp", bucket = bucket, first = arg.overlap and "1 MiB" or bucket }
end

local function schedule()
  if arg.chunks == 1 then return arg.schedule end
  if arg.schedule ~= "1f1b" then error(("chunks=%d are interleaved, not %s"):format(arg.chunks, arg.schedule)) end
  return "interleaved"
end

local function strategies()
  local list = {}
  if arg.pp > 1 then
    list[1] = prun.pipeline { axis = "pp", schedule = schedule(), chunks = arg.chunks, split = arg.split,
                              stages = #arg.stages > 0 and arg.stages or nil }
  end
  if arg.tp > 1 then list[#list + 1] = prun.tensor_parallel { axis = "tp", sequence = arg.sequence } end
  if arg.cp > 1 then list[#list + 1] = prun.context_parallel { axis = "cp" } end
  list[#list + 1] = data_parallel()
  if arg.recompute == "full" then list[#list + 1] = prun.recompute { whole = true } end
  return list
end

return prun.plan {
  mesh      = mesh,
  model     = model(),
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = strategies(),
  optimizer = prun.adamw { lr = arg.lr, clip = 1.0 },
  micro     = microbatches(),
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = arg.precision,
  reduce    = arg.reduce,
}
