-- First attempts of people who know PyTorch: --set case=NAME. first_attempts/commands.txt has prun's answers.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { case = "" }

local function plan(fields)
  local all = {
    mesh = prun.mesh { dp = prun.world },
    model = prun.models.gpt { vocab = 256, layers = 2, width = 16, heads = 2, context = 8 },
    data = prun.data.bytes { path = "text/sample.txt", batch = 8 },
    strategy = { prun.ddp { axis = "dp" } },
    optimizer = prun.sgd { lr = 0.1 },
    steps = 4,
  }
  for name, value in pairs(fields) do all[name] = value end
  return prun.plan(all)
end

-- Returns a plan whose model computes fn of x [8, 8].
local function model(fn)
  return plan {
    model = function(batch) return prun.losses.mean(fn(batch.x)) end,
    data = prun.data.random { batch = 8 * prun.world, inputs = 8, outputs = 8 },
  }
end

local cases = {
  -- layers
  conv2d = function() return model(function(x) return nn.Conv2d(3, 8, 3)(x) end) end,
  batchnorm = function() return model(function(x) return nn.BatchNorm1d("n", x) end) end,
  lstm = function() return model(function(x) return nn.LSTM("l", x, 8) end) end,
  maxpool = function() return model(function(x) return nn.MaxPool2d(x, 2) end) end,
  mamba = function() return model(function(x) return nn.Mamba("m", x) end) end,
  softmax = function() return model(function(x) return nn.LogSoftmax(x) end) end,
  functional = function() return model(function(x) return nn.functional.relu(x) end) end,
  linear_of_torch = function() return model(function(x) return nn.Linear(8, 8)(x) end) end,
  layernorm_of_torch = function() return model(function(x) return nn.layer_norm("n", x) end) end,
  silu = function() return model(function(x) return nn.swiglu(x) end) end,
  sdpa = function() return model(function(x) return nn.scaled_dot_product_attention(x, x, x) end) end,
  multihead = function() return model(function(x) return nn.MultiheadAttention(8, 2)(x) end) end,
  module = function() return model(function() return nn.Module() end) end,
  cat = function() return model(function(x) return nn.cat(x, x) end) end,
  lora = function() return model(function(x) return nn.lora("a", x) end) end,
  -- tensors
  view = function() return model(function(x) return x:view(4, 16) end) end,
  chunk = function() return model(function(x) return x:chunk(2, 1) end) end,
  size = function() return model(function(x) return nn.linear("a", x, x:size(1)) end) end,
  to_device = function() return model(function(x) return x:to("cuda") end) end,
  half = function() return model(function(x) return x:half() end) end,
  backward = function() return model(function(x) return x:backward() end) end,
  detach = function() return model(function(x) return x:detach() end) end,
  item = function() return model(function(x) return x:item() end) end,
  power = function() return model(function(x) return x ^ "2" end) end,
  division = function() return model(function(x) return x / 0 end) end,
  one_minus = function() return model(function(x) return x - nil end) end,
  comparison = function() return model(function(x) return x > x and x or x end) end,
  -- optimizers and losses
  adam = function() return plan { optimizer = prun.Adam { lr = 1e-3 } } end,
  muon = function() return plan { optimizer = prun.Muon { lr = 1e-3 } } end,
  adafactor = function() return plan { optimizer = prun.Adafactor {} } end,
  learning_rate = function() return plan { optimizer = prun.adamw { learning_rate = 1e-3 } } end,
  max_grad_norm = function() return plan { optimizer = prun.adamw { max_grad_norm = 1.0 } } end,
  one_cycle = function() return plan { optimizer = prun.adamw { lr = prun.OneCycleLR {} } } end,
  cosine_annealing = function() return plan { optimizer = prun.adamw { lr = prun.CosineAnnealingLR {} } } end,
  bce = function() return model(function(x) return prun.losses.BCELoss(x, x) end) end,
  ignore_index = function() return model(function(x) return prun.losses.cross_entropy(x, x, { ignore_index = 0 }) end) end,
  -- the plan
  epochs = function() return plan { epochs = 3 } end,
  batch_size = function() return plan { batch_size = 8 } end,
  batch_size_of_data = function() return plan { data = prun.data.bytes { path = "text/sample.txt", batch_size = 8 } } end,
  accumulation = function() return plan { gradient_accumulation_steps = 4 } end,
  mixed_precision = function() return plan { mixed_precision = "fp16" } end,
  fp16 = function() return plan { dtype = "fp16" } end,
  freeze = function() return plan { freeze = { "embed" } } end,
  num_workers = function() return plan { data = prun.data.bytes { path = "text/sample.txt", batch = 8, num_workers = 4 } } end,
  device = function() return plan { device = prun.device("cuda") } end,
  -- programs
  train = function() return prun.train(plan {}) end,
  trainer = function() return prun.Trainer { model = prun.models.gpt {} } end,
  save = function() return prun.save(plan {}, "model.pt") end,
  from_pretrained = function() return plan { model = prun.from_pretrained("gpt2") } end,
  compile = function() return prun.compile(plan {}) end,
  manual_seed = function() return prun.manual_seed(1337) end,
  init_process_group = function() return prun.init_process_group("nccl") end,
  get_rank = function() return prun.get_rank() end,
  dataloader = function() return plan { data = prun.DataLoader {} } end,
  fully_shard = function() return plan { strategy = { prun.fully_shard {} } } end,
  require_torch = function() return require "torch" end,
}

if not cases[arg.case] then error("no case '" .. arg.case .. "'") end
return cases[arg.case]()
