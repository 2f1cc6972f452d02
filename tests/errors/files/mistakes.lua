-- Plans with a mistake, complete or cut off after it; --set case=NAME selects one.
local prun = require "prun"
local plans = require "plans"
local nn = prun.nn

-- Models for vectors of 8 numbers.
local models = {}

function models.attention_option_misspelled(batch)
  local x = nn.linear("a", batch.x, 16)
  return prun.losses.mean(nn.attention(x, 2, { kv_head = 1 }))
end

function models.blocks_do_not_add_up(batch)
  local y = nn.linear("a", batch.x, 16, {
    blocks = { 8, 4 },
  })
  return prun.losses.mse(y, batch.y)
end

function models.dropout_of_all(batch)
  local x = nn.linear("a", batch.x, 16)
  return prun.losses.mean(nn.dropout(x, 1))
end

function models.dropout_without_share(batch)
  local x = nn.linear("a", batch.x, 16)
  return prun.losses.mean(nn.dropout(x))
end

function models.rotary_without_size(batch)
  local x = nn.linear("a", batch.x, 16)
  return prun.losses.mean(nn.rotary(x, { heads = 2 }))
end

function models.shapes_do_not_fit(batch)
  local y = nn.linear("a", batch.x, 16)
  return prun.losses.mse(y + batch.x, batch.y)
end

function models.unit_twice(batch)
  local x = batch.x
  for _ = 1, 2 do
    x = nn.unit("layer", function() return nn.linear("a", x, 8) end)
  end
  return prun.losses.mse(x, batch.y)
end

local cases = {}

-- Weights and batch cannot both be split over one axis.
function cases.axis_twice()
  return plans.gpt {
    mesh     = prun.mesh { tp = 2 },
    strategy = { prun.tensor_parallel { axis = "tp" }, prun.ddp { axis = "tp" } },
  }
end

function cases.calls_os_execute() os.execute("rm -rf build") end

function cases.capacity_negative()
  return plans.gpt {
    model = prun.models.moe {
      layers = 1, width = 8, heads = 2, context = 4, experts = 2,
      capacity = -1,
    },
  }
end

function cases.choices_zero()
  return plans.gpt {
    model = prun.models.moe {
      layers = 1, width = 8, heads = 2, context = 4, experts = 2,
      choices = 0,
    },
  }
end

function cases.data_disagrees()
  return plans.gpt { data = prun.data.bytes { path = "eight_bytes.txt", batch = 1, context = 4 } }
end

function cases.data_empty()
  return plans.gpt { data = prun.data.bytes { path = "empty.txt", batch = 1 } }
end

function cases.data_short()
  return plans.gpt {
    data = prun.data.bytes {
      path = "eight_bytes.txt", batch = 1,
    },
  }
end

function cases.eats_memory()
  local everything = {}
  for i = 1, 1e12 do
    everything[i] = ("x"):rep(100000) .. i
  end
end

function cases.error_in_the_plan()
  local settings = {}
  local width = settings.model.width
end

function cases.eval_every_zero() prun.eval { every = 0 } end

function cases.eval_missing_file()
  return plans.gpt { eval = prun.eval { every = 2, data = prun.data.bytes { path = "none.txt", batch = 8 } } }
end

function cases.eval_no_evaluation()
  return prun.plan {
    mesh      = prun.mesh {},
    model     = prun.models.mlp {},
    data      = prun.data.random { batch = 4 },
    eval      = 50,
    optimizer = prun.sgd {},
  }
end

function cases.eval_other_batch()
  return plans.mlp {
    eval = prun.eval { every = 2, data = prun.data.random {
      batch = 8 } },
  }
end

function cases.eval_other_data()
  return plans.mlp { eval = prun.eval { every = 2, data = prun.data.index { batch = 4 } } }
end

function cases.f64_on_cpu()
  return plans.mlp {
    strategy = { prun.ddp { axis = "dp" } },
    dtype    = "f64",
  }
end

function cases.finalizer() setmetatable({}, { __gc = function() end }) end

function cases.heads_do_not_divide()
  return plans.gpt { model = prun.models.llama { layers = 1, width = 64, heads = 3, context = 4 } }
end

function cases.hook_without_axis()
  local mine = prun.strategy("mine", { axis = "dp" }, function(unit, opt)
    unit:after("backward", function()
      prun.all_reduce(unit.grads, { op = "avg" })
    end)
  end)
  return plans.mlp { strategy = { mine { axis = "dp" } } }
end

function cases.kv_heads_do_not_divide()
  return plans.gpt { model = prun.models.llama { layers = 1, width = 64, heads = 4, kv_heads = 3, context = 4 } }
end

-- The model has no such layers.
function cases.layers_not_found()
  return plans.gpt {
    mesh     = prun.mesh { tp = 2 },
    strategy = { prun.tensor_parallel { axis = "tp", column = { "wide" }, row = { "narrow" }, rows = {} } },
  }
end

function cases.loops_forever()
  local n = 0
  while true do
    pcall(function() n = n + 1 end)
  end
end

function cases.loss_is_not_one_number()
  return prun.plan {
    mesh      = prun.mesh { dp = 1 },
    model     = function(batch) return prun.nn.linear("a", batch.x, 16) end,
    data      = prun.data.random { batch = 2, inputs = 8, outputs = 16 },
    optimizer = prun.sgd { lr = 0.1 },
  }
end

function cases.mesh_axis_unused()
  return plans.mlp {
    mesh     = prun.mesh { dp = 2, tp = 2 },
    strategy = { prun.ddp { axis = "dp" } },
  }
end

function cases.mesh_too_small()
  return plans.mlp {
    mesh     = prun.mesh { dp = 2 },
    strategy = { prun.ddp { axis = "dp" } },
  }
end

function cases.mesh_without_order() prun.mesh { x = 2, y = 2 } end

function cases.missing_field()
  return prun.plan {
    mesh = prun.mesh { dp = 1 },
  }
end

function cases.module_outside() local passwords = require "../../etc/passwd" end

function cases.more_choices_than_experts()
  return plans.gpt {
    model = prun.models.moe {
      layers = 1, width = 8, heads = 2, context = 4, experts = 2,
      choices = 3,
    },
  }
end

function cases.not_a_choice() prun.models.mlp { activation = "gelo" } end

-- A placement is written S(dim).
function cases.not_a_placement()
  local wrong = prun.strategy("wrong", { axis = "tp" }, function(unit, opt)
    for _, layer in ipairs(unit:find "up") do layer:place { [opt.axis] = "columns" } end
  end, { splits = "nothing" })
  return plans.gpt { mesh = prun.mesh { tp = 2 }, strategy = { wrong {} } }
end

function cases.not_a_whole_number() prun.models.gpt { layers = 2.5 } end

function cases.offload_nothing()
  return plans.mlp {
    strategy  = { prun.zero3 { axis = "dp", offload = "optimizer" } },
    optimizer = prun.sgd { lr = 0.1 },
  }
end

function cases.offload_some()
  local wrong = prun.strategy("wrong", { axis = "dp" }, function(unit, opt)
    unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.axis }) end)
    if unit.name == "block" then unit.optimizer:offload { ahead = 1 } end
  end)
  return plans.gpt { strategy = { wrong {} }, optimizer = prun.adamw { lr = 0.1 } }
end

function cases.offload_unknown()
  return plans.mlp {
    strategy  = { prun.zero3 { axis = "dp", offload = "optimiser" } },
    optimizer = prun.adamw { lr = 0.1 },
  }
end

function cases.op_outside_model() prun.nn.relu(1) end

-- Hybrid sharding needs two axes.
function cases.over_one_axis() return plans.gpt { strategy = { prun.zero3 { over = { "dp" } } } } end

-- A weight that no op uses would never be trained.
function cases.parameter_unused()
  local forgetful = prun.model("forgetful", {}, function(_, batch)
    return nn.unit("only", function()
      nn.parameter("spare", { 4, 4 }, { "normal", 0.02 })
      return prun.losses.mean_square(nn.linear("used", batch.x, 4))
    end)
  end)
  return plans.mlp { model = forgetful {} }
end

function cases.rate_least_above_lr() prun.linear { lr = 1e-3, least = 1e-2 } end
function cases.rate_negative() prun.sgd { lr = -0.1 } end
function cases.rate_of_wrong_type() prun.sgd { lr = "fast" } end
function cases.rate_unknown_option() prun.cosine { lr = 1e-3, warm_up = 3 } end
function cases.rate_warmup_negative() prun.warmup { lr = 1e-3, warmup = -1 } end

function cases.rate_warmup_too_long()
  return plans.mlp {
    optimizer = prun.adamw {
      lr = prun.cosine { lr = 1e-3,
        warmup = 30 },
    },
    steps     = 20,
  }
end

-- The model has no units of this class.
function cases.recompute_unknown_unit()
  return plans.gpt { strategy = { prun.ddp { axis = "dp" }, prun.recompute { units = { "blok" } } } }
end

-- reduce_scatter makes the gradient shard, but it comes after the reduction over the other axis.
function cases.reduce_before_scatter()
  return plans.gpt {
    mesh     = prun.mesh { dp = 2, cp = 2 },
    strategy = { require "summed_before_scattered" {} },
  }
end

function cases.reduce_scatter_not_divisible()
  return prun.program(function()
    prun.reduce_scatter(prun.full({ 5 }, 1), "sum")
  end)
end

function cases.report_every_zero()
  return prun.plan {
    mesh      = prun.mesh {},
    model     = prun.models.mlp {},
    data      = prun.data.random { batch = 4 },
    report    = { every = 0, norms = true },
    optimizer = prun.sgd {},
  }
end

function cases.report_misspelled()
  return prun.plan {
    mesh      = prun.mesh {},
    model     = prun.models.mlp {},
    data      = prun.data.random { batch = 4 },
    report    = { every = 10, norm = true },
    optimizer = prun.sgd {},
  }
end

function cases.root_out_of_range()
  return prun.program(function()
    prun.broadcast(prun.full({ 5 }, 1), 2)
  end)
end

-- A row layer needs split inputs.
function cases.row_without_column()
  return plans.gpt { mesh = prun.mesh { tp = 2 }, strategy = { prun.tensor_parallel { axis = "tp", column = {} } } }
end

-- 1F1B has one chunk per rank.
function cases.schedule_chunks()
  return plans.gpt {
    mesh     = prun.mesh { pp = 2 },
    strategy = { prun.pipeline { axis = "pp", schedule = "1f1b", chunks = 2 } },
    micro    = 2,
  }
end

-- Slots belong to a schedule.
function cases.schedule_outside()
  prun.forward(0)
  return plans.gpt { strategy = { prun.ddp { axis = "dp" } } }
end

-- Both strategies would split the tokens.
function cases.two_contexts()
  return plans.gpt {
    mesh     = prun.mesh { { "cp", 2 }, { "cp2", 2 } },
    strategy = { prun.context_parallel { axis = "cp" }, prun.context_parallel { axis = "cp2" } },
  }
end

-- A weight has two dims.
function cases.shard_dim_too_large()
  local wrong = prun.strategy("wrong", { axis = "tp" }, function(unit, opt)
    for _, layer in ipairs(unit:find "up") do layer:place { [opt.axis] = "S(2)" } end
  end, { splits = "nothing" })
  return plans.gpt { mesh = prun.mesh { tp = 2 }, strategy = { wrong {} } }
end

-- Two strategies shard the same parameters.
function cases.sharded_twice()
  return plans.gpt {
    mesh     = prun.mesh { dp = 2, cp = 2 },
    strategy = { prun.zero3 { axis = "dp" }, prun.zero3 { axis = "cp" } },
  }
end

-- Random vectors have no tokens to split.
function cases.tokens_without_tokens()
  return plans.mlp {
    mesh     = prun.mesh { cp = 2 },
    strategy = { prun.context_parallel { axis = "cp" } },
  }
end

function cases.too_small() prun.models.gpt { layers = 0 } end

-- A model is partitioned into stages once.
function cases.two_pipelines()
  return plans.gpt {
    mesh     = prun.mesh { { "a", 2 }, { "b", 2 } },
    strategy = { prun.pipeline { axis = "a" }, prun.pipeline { axis = "b" } },
  }
end

function cases.unknown_axis()
  return plans.mlp {
    strategy = {
      prun.zero3 { axis = "pd" },
    },
  }
end

function cases.unknown_field()
  return prun.plan {
    mesh = prun.mesh { dp = 1 },
    optimiser = prun.sgd { lr = 0.1 },
  }
end

function cases.unknown_model() prun.models.gtp { layers = 2 } end

function cases.unknown_model_option()
  prun.models.gpt {
    layers = 2,
    head = 4,
  }
end

function cases.unknown_name()
  local layers = 4
  local width = layer * 64
end

function cases.unknown_phase()
  local mine = prun.strategy("mine", { axis = "dp" }, function(unit)
    unit:after("backwards", function() end)
  end)
  return plans.mlp { strategy = { mine {} } }
end

function cases.unknown_rank_field()
  return prun.program(function(r)
    prun.print(r.ranks)
  end)
end

function cases.unknown_reduction()
  return prun.program(function()
    local x = prun.full({ 5 }, 1)
    prun.all_reduce(x, "summ")
  end)
end

-- The dimension that an axis splits.
function cases.unknown_splits()
  local wrong = prun.strategy("wrong", { axis = "tp" }, function() end, { splits = "tokens and batch" })
  return plans.gpt { mesh = prun.mesh { tp = 2 }, strategy = { wrong {} } }
end

function cases.unknown_strategy() return plans.mlp { strategy = { prun.zero4 { axis = "dp" } } } end

function cases.unknown_strategy_option()
  prun.zero3 {
    axis = "dp",
    prefech = 2,
  }
end

function cases.unknown_word() return prun.plam {} end
function cases.uses_load() local f = load("return 1") end
function cases.word_outside_hook() prun.all_reduce(1, "sum") end
function cases.wrong_bucket() return plans.mlp { strategy = { prun.zero3 { axis = "dp", bucket = "25 MiB" } } } end

function cases.wrong_type()
  prun.models.gpt {
    layers = "four",
  }
end

function cases.init_from_nowhere()
  prun.init.from {
    path = "no/such/model",
  }
end

function cases.init_is_a_text() return plans.gpt { init = "model" } end
function cases.init_word_misspelled() return plans.gpt { init = prun.init.form { path = "model" } } end
function cases.positions_too_few() return plans.gpt { model = prun.models.gpt { context = 64, positions = 32 } } end
function cases.plan_without_such_an_option() return plans.gpt { pack_weights = "all" } end
function cases.reduce_misspelled() return plans.gpt { reduce = "rank_ordr" } end
function cases.reduce_of_another_type() return plans.gpt { reduce = true } end

function cases.rotary_heads_do_not_divide()
  return plans.gpt {
    mesh = prun.mesh { tp = 2 },
    strategy = { prun.tensor_parallel {} },
    model = function(batch)
      local x = nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 8 }))
      return prun.losses.cross_entropy(nn.rotary(nn.linear("q", x, 256), { size = 4, heads = 3 }), batch.targets)
    end,
    data = prun.data.bytes { path = "text/sample.txt", batch = 8, context = 8 },
  }
end

-- The weights are sharded, so no rank has whole weights to average.
function cases.averages_of_shards()
  local averages = prun.strategy("averages", { axis = "replicate" }, function(unit, opt)
    unit:every(4, function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
  end, { differs = "weights drift between averages" })
  return plans.gpt {
    mesh     = prun.mesh { replicate = 2, dp = 2 },
    strategy = { averages {}, prun.zero1 { axis = "dp" } },
  }
end

-- `over` names axes only if it is a list: these options reach the hooks, whose axis does not exist.
function cases.over_is_a_text()
  local mine = prun.strategy("mine", { axis = "dp", over = { "dq", "an axis" } }, function(unit, opt)
    unit:after("backward", function() prun.all_reduce(unit.grads, { axis = opt.over }) end)
  end)
  return plans.gpt { strategy = { mine { over = "dr" } } }
end

function cases.over_is_a_number()
  local mine = prun.strategy("mine", { axis = "dp", over = { 3, "how often" } }, function(unit, opt)
    unit:after("backward", function() prun.all_reduce(unit.grads, { axis = "dq" }) end)
  end)
  return plans.gpt { strategy = { mine { over = 4 } } }
end

-- zero3 reduces every gradient, so ddp would have nothing to do.
function cases.two_data_parallel_strategies()
  return plans.gpt {
    mesh     = prun.mesh { dp = 2 },
    strategy = { prun.ddp { axis = "dp" }, prun.zero3 { axis = "dp" } },
  }
end

-- An axis without a name.
function cases.nameless_axis()
  return plans.gpt { strategy = { prun.expert_parallel { axis = "" } } }
end

-- A text with a zero byte and one that clears the screen.
function cases.zero_byte()
  return plans.gpt { mesh = prun.mesh { dp = "2\0\27[2J" } }
end

local name = prun.args { case = "" }.case
return models[name] and plans.mlp { model = models[name] } or cases[name]()
