-- A small transformer on packed documents, or on arrays of the same documents, one a sample. documents_test.py compares
-- meshes with the documents alone.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  alone = false,           -- read arrays of single documents
  model = { "own", "own or built in", choices = { "own", "gpt", "llama", "moe", "mixtral" } },
  share = { "zigzag", "of tokens under context parallelism", choices = { "zigzag", "documents" } },
  dp = 1, cp = 1, tp = 1, pp = 1, zero = 0, schedule = "1f1b", micro = 1, batch = 8, capacity = 32, long = "error",
  path = "documents.bin", order = "epochs", steps = 3, lr = 0.1, vocab = 24, seed = 0, eval = 0, eot = 5,
  encoder = false, restart = true, apart = true,
}

local source
if arg.alone then
  source = prun.data.arrays {
    inputs = { tokens = "tokens.npy", targets = "targets.npy", positions = "positions.npy", documents = "runs.npy" },
    batch = arg.batch, order = "given",
  }
else
  source = prun.data.tokens { path = arg.path, batch = arg.batch, vocab = arg.vocab, order = arg.order,
                              pack = "documents", eot = arg.eot, long = arg.long,
                              capacity = arg.model == "own" and arg.capacity or nil }
end

local function transformer(batch)
  local function table_of(name, rows) return nn.parameter(name, { rows, 16 }, { "normal", 0.5 }) end
  local x = nn.unit("embed", function()
    local positions = arg.restart and batch.positions or batch.tokens
    return nn.embedding(batch.tokens, table_of("token.weight", arg.vocab)) +
      nn.embedding(positions, table_of("position.weight", 32))
  end)
  for i = 0, 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln", x), 32, { blocks = { 16, 8, 8 } })
      local seen = nn.attention(qkv, 4, { kv_heads = 2, causal = not arg.encoder,
                                          documents = arg.apart and batch.documents or nil })
      return x + nn.linear("proj", seen, 16)
    end)
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", nn.rmsnorm("ln", x), arg.vocab)
    return prun.losses.cross_entropy(logits, batch.targets)
  end)
end

local models = {
  own = transformer,
  gpt = prun.models.gpt { vocab = arg.vocab, layers = 2, width = 16, heads = 4, context = arg.capacity },
  llama = prun.models.llama { vocab = arg.vocab, layers = 2, width = 16, heads = 4, kv_heads = 2,
                              context = arg.capacity },
  moe = prun.models.moe { vocab = arg.vocab, layers = 2, width = 16, heads = 4, context = arg.capacity, aux = 0 },
  mixtral = prun.models.mixtral { vocab = arg.vocab, layers = 2, width = 16, heads = 4, kv_heads = 2,
                                  context = arg.capacity, aux = 0 },
}
local zero = { [0] = prun.ddp, prun.zero1, prun.zero2, prun.zero3 }
return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = arg.dp, cp = arg.cp, tp = arg.tp },
  model     = models[arg.model],
  data      = source,
  eval      = arg.eval > 0 and prun.eval { every = 1, batches = arg.eval, hold_out = 0.5 } or nil,
  strategy  = {
    prun.pipeline { axis = "pp", schedule = arg.schedule }, prun.context_parallel { axis = "cp", share = arg.share },
    prun.tensor_parallel { axis = "tp" }, zero[arg.zero] { axis = "dp" },
  },
  optimizer = prun.sgd { lr = arg.lr },
  micro     = arg.micro,
  steps     = arg.steps,
  seed      = arg.seed,
  dtype     = "f64",
}
