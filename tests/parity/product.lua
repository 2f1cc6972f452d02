-- Any tiny model under any composition of strategies; product_test.cc compares it with one rank. Without arguments it
-- is the plan `single`: an axis of size 0 and its strategy are omitted.

local prun = require "prun"
local odd = require "odd_models"
local functions = require "functions_model"
local views = require "view_models"
local windows = require "window_models"

local arg = prun.args {
  model = { "gpt", "gpt, llama, moe, mixtral, mlp, functions, or one of odd_models.lua, view_models.lua, window_models.lua" },
  pp = 0, replicate = 0, dp = 0, cp = 0, ep = 0, tp = 0,
  data_parallel = { "ddp", "ddp, zero1, zero2, zero3, or zero3 with an option: keep, ahead, whole, most, group" },
  wire = { "", "dtype in which zero1, zero2 and zero3 send" },
  schedule = "1f1b",
  split = "layers",
  transfer = "send",
  fold = { "", "axes of other strategies that have the experts, such as dp or dp,tp" },
  sequence = { false, "tokens are split between the layers of tp" },
  recompute = { "", "blocks, or the name of a class of units" },
  again = { false, "what is recomputed is so whole" },
  offload = { false, "optimizer state lives on the host" },
  tied = { false, "the head is the token embedding" },
  dropout = 0.0,
  layers = 3, width = 24, heads = 12, kv_heads = 0, vocab = 257, context = 8, batch = 24, micro = 1,
  experts = 4, choices = 2, capacity = math.huge, dropless = false,
  loss = { "mse", "mlp: mean does not read the targets" },
  optimizer = "sgd", lr = 0.1, clip = 0.0,
  adjust = "original",
  groups = { false, "the optimizer has groups of parameters" },
  frozen = { "", "parameters that are not trained" },
  lora = { "", "layers with adapters" }, train = { "", "parameters that are trained besides" }, adapter_dropout = 0.0,
}

local models = {
  gpt = function(shape)
    shape.tied, shape.dropout = arg.tied, arg.dropout
    return prun.models.gpt(shape)
  end,
  llama = function(shape)
    shape.tied, shape.kv_heads = arg.tied, arg.kv_heads
    return prun.models.llama(shape)
  end,
  moe = function(shape)
    shape.experts, shape.choices = arg.experts, arg.choices
    shape.capacity, shape.dropless = arg.capacity, arg.dropless
    return prun.models.moe(shape)
  end,
  mixtral = function(shape)
    shape.experts, shape.choices, shape.hidden = arg.experts, arg.choices, 8
    shape.capacity, shape.dropless = arg.capacity, arg.dropless
    return prun.models.mixtral(shape)
  end,
  functions = functions,
  mlp = function()
    return prun.models.mlp { inputs = 24, outputs = 24, width = arg.width, layers = arg.layers, activation = "gelu",
                             loss = arg.loss }
  end,
}
for name, build in pairs(views.of_numbers) do odd[name] = build end
for name, build in pairs(windows) do odd[name] = build end
for name, build in pairs(odd) do
  models[name] = function() return function(batch) return build(batch, arg.width, arg.layers) end end
end
for name, build in pairs(views.of_tokens) do
  models[name] = function(shape)
    return prun.model(name, shape, function(opt, batch) return build(batch, opt) end) {}
  end
end
local has_tokens = arg.model ~= "mlp" and not odd[arg.model]

local zero3 = { zero3 = {}, keep = { reshard_after_forward = false }, ahead = { prefetch = 3, inflight = 2 },
                group = { reshard_after_forward = "group" },
                group_whole = { reshard_after_forward = "group", persist_below = "256 B" },
                whole = { persist_below = "256 B" }, most = { persist_below = "4 KiB" } }

-- Returns the strategy of the axes that split the batch.
local function data_parallel()
  local options = zero3[arg.data_parallel] or {}
  if arg.offload then options.offload, options.offload_ahead, options.offload_piece = "optimizer", 1, "512 B" end
  if arg.data_parallel ~= "ddp" then options.wire = arg.wire end
  if not zero3[arg.data_parallel] then
    options.axis = "dp"
    return prun[arg.data_parallel](options)
  end
  if arg.replicate > 0 then options.over = { "replicate", "dp" } end
  options.axis = "dp"
  return prun.zero3(options)
end

local axes, strategies = {}, {}
for _, name in ipairs { "pp", "replicate", "dp", "cp", "ep", "tp" } do
  if arg[name] > 0 then axes[#axes + 1] = { name, arg[name] } end
end
local function add(wanted, strategy) if wanted then strategies[#strategies + 1] = strategy() end end
add(arg.dp > 0, data_parallel)  -- first, because others reduce the tensors that it scatters
add(arg.pp > 0, function()
  return prun.pipeline { axis = "pp", schedule = arg.schedule, split = arg.split, transfer = arg.transfer }
end)
add(arg.tp > 0, function()
  if not has_tokens then
    return prun.tensor_parallel { axis = "tp", column = { "linear" }, row = {}, rows = {} }
  end
  return prun.tensor_parallel { axis = "tp", sequence = arg.sequence }
end)
add(arg.ep > 0, function() return prun.expert_parallel { axis = "ep" } end)
add(arg.fold ~= "", function()
  local over = {}
  for axis in arg.fold:gmatch "[^,]+" do over[#over + 1] = axis end
  return prun.expert_parallel(#over > 1 and { over = over } or { axis = over[1] })
end)
add(arg.cp > 0, function() return prun.context_parallel { axis = "cp" } end)
add(arg.recompute ~= "", function()
  return prun.recompute { units = arg.recompute ~= "blocks" and { arg.recompute } or nil, whole = arg.again }
end)

-- Adam whose second average sees the parameter.
local function own(opt)
  return prun.optimizer {
    name = "own", lr = opt.lr, clip = opt.clip, weight_decay = opt.weight_decay, state = { "m", "v" },
    update = function(p, g, state, at)
      local m = 0.9 * state.m + 0.1 * g
      local v = 0.95 * state.v + 0.05 * (g + at.weight_decay * p) ^ 2
      local step = m / (1 - 0.9 ^ at.t) / (prun.nn.sqrt(v) + 1e-3)
      return p - at.lr * (step + at.weight_decay * p), { m = m, v = v }
    end,
  }
end

-- Matrices of the blocks by Muon, all else by AdamW.
local function muon(opt)
  return prun.groups {
    { match = "embed*|head*|*logits*", decay = 0.1, optimizer = prun.adamw { lr = 0.3 * opt.lr } },
    { dims = 1, optimizer = prun.adamw { lr = 0.5 * opt.lr } },
    prun.muon { lr = opt.lr, clip = opt.clip, adjust = arg.adjust },
  }
end

-- Bounds of means keep gradients that are zero but for rounding, such as those of keys' biases, from full steps.
local function adafactor(opt)
  return prun.adafactor { lr = opt.lr, clip = opt.clip, weight_decay = opt.weight_decay, eps = { 1e-3, 1e-3 } }
end

local makers = { own = own, muon = muon, adafactor = adafactor }

-- Neighbors in a flat vector belong to different groups, and one group names a single layer.
local make = makers[arg.optimizer] or prun[arg.optimizer]
local optimizer = make { lr = arg.lr, clip = arg.clip, weight_decay = arg.groups and 0.1 or nil }
if arg.groups then
  optimizer = prun.groups {
    { match = "*bias|*.ln*|*norm*", decay = 0 },
    { match = "layer1.*|block1.*|*.up.weight", lr = 0.3, decay = 0.5 },
    { match = "*.down.*|layer2.*|*position*", lr = 2 },
    { dims = 2, decay = 0.05 },
    optimizer,
  }
end

return prun.plan {
  mesh      = prun.mesh(axes),
  model     = models[arg.model] { vocab = arg.vocab, layers = arg.layers, width = arg.width, heads = arg.heads,
                                  context = arg.context },
  data      = has_tokens and prun.data.bytes { path = "text/sample.txt", batch = arg.batch } or
              prun.data.random { batch = arg.batch, inputs = 24, outputs = 24 },
  strategy  = strategies,
  report    = { every = 2, norms = true },
  eval      = prun.eval { every = 3, batches = 2 },
  optimizer = optimizer,
  frozen    = arg.frozen ~= "" and arg.frozen or nil,
  lora      = arg.lora ~= "" and prun.lora { match = arg.lora, rank = 5, alpha = 8, dropout = arg.adapter_dropout,
                                             train = arg.train ~= "" and arg.train or nil } or nil,
  micro     = arg.micro,
  steps     = 5,
  seed      = 11,
  dtype     = "f64",
}
