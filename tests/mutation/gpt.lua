-- A tiny GPT in f64 under a given strategy, which the mutation test mutates.

local prun = require "prun"

local arg = prun.args {
  strategy = { "zero3", "single, or names of strategies with + between, each over an axis of its own" },
  schedule = "1f1b",
  layers = 1, width = 16, heads = 2, context = 8, batch = 8, micro = 1, pp = 1, cp = 1, seed = 7, lr = 1e-2,
  clip = { 1.0, "bound of the norm of all gradients" },
  optimizer = "adamw",
  tied = { false, "the head is the token embedding" },
  offload = { "", "optimizer, or empty" },
  groups = { false, "the optimizer has groups of parameters" },
  frozen = { "", "parameters that are not trained" },
  ends = { -1, "the byte that ends a document; -1: none" },
  packed = { false, "streams of the lines of the text" },
  lora = { "", "layers with adapters" },
  dtype = "f64",
}

local make = {
  ddp = function()
    return prun.ddp { axis = "dp", bucket = "8 KiB", first = "1 KiB", offload = arg.offload, offload_piece = "2 KiB" }
  end,
  zero3 = function()
    return prun.zero3 { axis = "dp", prefetch = 1, offload = arg.offload, offload_ahead = 1, offload_piece = "4 KiB" }
  end,
  context_parallel = function() return prun.context_parallel { axis = "cp", share = "documents" } end,
  pipeline = function() return prun.pipeline { axis = "pp", schedule = arg.schedule } end,
}
local strategies = {}
for name in arg.strategy:gmatch "[^+]+" do
  if name ~= "single" then strategies[#strategies + 1] = make[name]() end
end

-- Returns SGD with momentum as an optimizer of the plan's own.
local function own(opt)
  return prun.optimizer {
    name = "own", lr = opt.lr, clip = opt.clip, state = { "m" },
    update = function(p, g, state, at)
      local m = 0.9 * state.m + g
      return p - at.lr * (m + at.weight_decay * p), { m = m }
    end,
  }
end

-- Muon for the matrices of blocks.
local function muon(opt)
  return prun.groups {
    { match = "embed*|head*", optimizer = prun.adamw { lr = opt.lr } },
    { dims = 1, optimizer = prun.adamw { lr = 0.1 * opt.lr } },
    prun.muon { lr = opt.lr, clip = opt.clip },
  }
end

local makers = { own = own, muon = muon }
local optimizer = (makers[arg.optimizer] or prun[arg.optimizer]) { lr = arg.lr, clip = arg.clip }
if arg.groups then
  optimizer = prun.groups {
    { match = "*.bias|*.ln*", decay = 0 }, { match = "*.up.weight|embed*", lr = 0.1, decay = 0.5 }, optimizer,
  }
end

local axes = arg.pp > 1 and { { "pp", arg.pp }, { "dp", prun.world // arg.pp } } or { dp = prun.world }
if arg.cp > 1 then axes = { { "dp", prun.world // arg.cp }, { "cp", arg.cp } } end
return prun.plan {
  mesh      = prun.mesh(arg.strategy == "single" and {} or axes),
  model     = prun.models.gpt { vocab = 128, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context, tied = arg.tied },
  data      = prun.data.bytes { path = "../../plans/text/sample.txt", batch = arg.batch,
                                document_end = arg.ends >= 0 and arg.ends or nil,
                                pack = arg.packed and "documents" or nil, eot = arg.packed and 10 or nil,
                                long = arg.packed and "split" or nil },
  strategy  = strategies,
  optimizer = optimizer,
  frozen    = arg.frozen ~= "" and arg.frozen or nil,
  lora      = arg.lora ~= "" and prun.lora { match = arg.lora, rank = 4, alpha = 4, train = "head.ln.*" } or nil,
  micro     = arg.micro,
  steps     = 3,
  seed      = arg.seed,
  dtype     = arg.dtype,
}
