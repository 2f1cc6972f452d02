-- Wrong uses of DSL functions, each next to the intended form: --set case=NAME, plus --set right=true for that form.
-- commands.txt has the messages; tests/unit/words_test.py runs the intended forms.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { case = "", right = false, dtype = { "f32", "type", choices = { "f32", "bf16" } } }

-- Returns a plan with these fields in place of the defaults.
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

-- Returns a plan with a custom strategy, zero2 with the changes of `fields`.
local function strategy(fields)
  local kept = {}
  return plan { strategy = { prun.strategy("own", { axis = "dp" }, function(unit, opt)
    kept[#kept + 1] = unit.grads
    local full
    local function gather() full = prun.all_gather(unit.params, { axis = opt.axis, keep = true }) end
    unit.params:flat():place { [opt.axis] = "S(0)" }
    unit:before("forward", function() prun.ensure(full, gather) end)
    unit:after("backward", function()
      prun.free(full)
      if fields.after then fields.after(full, unit, kept) end
      if fields.reduce then return fields.reduce(unit, kept) end
      prun.reduce_scatter(unit.grads, { axis = opt.axis, into = unit.grad_shard })
    end)
    if fields.body then fields.body(unit) end
  end, fields.traits) {} } }
end

local function schedule(order, traits)
  return plan {
    mesh = prun.mesh { pp = prun.world }, micro = 2,
    strategy = { prun.pipeline { schedule = prun.schedule("own", function(_, _, micro)
      for i = 0, micro - 1 do order(i, micro) end
      for i = 0, micro - 1 do prun.backward(i) end
    end, traits) } },
  }
end

local kept

local cases = {
  -- floats, texts, tables
  heads_of_a_division = {
    function() return model(function(x) return nn.linear("a", x, 8 / 3) end) end,
    function() return model(function(x) return nn.linear("a", x, 8 / 2) end) end,
  },
  name_is_a_number = {
    function() return model(function(x) return nn.linear(1, x, 8) end) end,
    function() return model(function(x) return nn.linear("1", x, 8) end) end,
  },
  name_after_the_tensor = {
    function() return model(function(x) return nn.linear(x, "a", 8) end) end,
    function() return model(function(x) return nn.linear("a", x, 8) end) end,
  },
  options_for_a_number = {
    function() return model(function(x) return nn.dropout(x, { p = 0.1 }) end) end,
    function() return model(function(x) return nn.dropout(nn.linear("l", x, 8), 0.1) end) end,
  },
  argument_too_many = {
    function() return model(function(x) return nn.relu(x, 0.1) end) end,
    function() return model(function(x) return nn.relu(nn.linear("a", x, 8)) end) end,
  },
  axis_with_a_comma = {
    function() return plan { mesh = prun.mesh { { "a,b", prun.world } } } end,
    function() return plan { mesh = prun.mesh { { "a_b", prun.world } }, strategy = { prun.ddp { axis = "a_b" } } } end,
  },
  strategy_without_options = {
    function() return plan { strategy = { prun.ddp } } end,
    function() return plan { strategy = { prun.ddp {} } } end,
  },
  strategy_that_is_nil = {
    function() return plan { strategy = { nil, prun.ddp {} } } end,
    function() return plan { strategy = { prun.ddp {} } } end,
  },
  option_without_its_name = {
    function() return plan { optimizer = prun.adamw { 1e-3 } } end,
    function() return plan { optimizer = prun.adamw { lr = 1e-3 } } end,
  },
  -- sizes
  size_beyond_all = {
    function() return model(function(x) return nn.linear("a", x, 2 ^ 62) end) end,
    function() return model(function(x) return nn.linear("a", x, 2 ^ 6) end) end,
  },
  product_beyond_all = {
    function() return model(function(x) return nn.linear("b", nn.linear("a", x, 2 ^ 40), 2 ^ 40) end) end,
    function() return model(function(x) return nn.linear("b", nn.linear("a", x, 2 ^ 4), 2 ^ 4) end) end,
  },
  steps_beyond_all = {
    function() return plan { steps = 2 ^ 60 } end,
    function() return plan { steps = 2 ^ 20 } end,
  },
  samples_beyond_all = {
    function() return plan { steps = 2 ^ 53, data = prun.data.bytes { path = "text/sample.txt", batch = 2 ^ 20 } } end,
    function() return plan { steps = 2 ^ 40, data = prun.data.bytes { path = "text/sample.txt", batch = 2 ^ 10 } } end,
  },
  mesh_beyond_all = {
    function() return plan { mesh = prun.mesh { dp = 2 ^ 31 - 1, tp = 2 ^ 31 - 1 } } end,
    function() return plan { mesh = prun.mesh { dp = prun.world, tp = 1 } } end,
  },
  -- numbers out of range
  rate_is_not_a_number = {
    function() return plan { optimizer = prun.sgd { lr = 0 / 0 } } end,
    function() return plan { optimizer = prun.sgd { lr = 0 } } end,
  },
  rate_infinite = {
    function() return plan { optimizer = prun.sgd { lr = prun.cosine { lr = 1 / 0 } } } end,
    function() return plan { optimizer = prun.sgd { lr = prun.cosine { lr = 1 } } } end,
  },
  beta_of_one = {
    function() return plan { optimizer = prun.adamw { betas = { 0.9, 1.0 } } } end,
    function() return plan { optimizer = prun.adamw { betas = { 0.9, 0.95 } } } end,
  },
  beta_alone = {
    function() return plan { optimizer = prun.adamw { betas = { 0.9 } } } end,
    function() return plan { optimizer = prun.adamw { betas = { 0.9, 0.99 } } } end,
  },
  clip_infinite = {
    function() return plan { optimizer = prun.adamw { clip = math.huge } } end,
    function() return plan { optimizer = prun.adamw { clip = 0 } } end,
  },
  dropout_is_not_a_number = {
    function() return plan { model = prun.models.gpt { layers = 1, width = 16, heads = 2, dropout = 0 / 0 } } end,
    function() return plan { model = prun.models.gpt { layers = 1, width = 16, heads = 2, dropout = 0.1 } } end,
  },
  bucket_negative = {
    function() return plan { strategy = { prun.ddp { bucket = "-25 MiB" } } } end,
    function() return plan { strategy = { prun.ddp { bucket = "25 MiB" } } } end,
  },
  -- formerly accepted silently
  init_unknown = {
    function() return model(function(x) return nn.linear("a", x, 8, { init = "nonsense" }) end) end,
    function() return model(function(x) return nn.linear("a", x, 8, { init = "ones" }) end) end,
  },
  init_without_its_number = {
    function() return model(function(x) return nn.linear("a", x, 8, { init = { "normal" } }) end) end,
    function() return model(function(x) return nn.linear("a", x, 8, { init = { "normal", 0.02 } }) end) end,
  },
  init_with_a_mean = {
    function() return model(function(x) return nn.linear("a", x, 8, { init = { "normal", 0, 0.02 } }) end) end,
    function() return model(function(x) return nn.linear("a", x, 8, { init = { "uniform", 0.02 } }) end) end,
  },
  layer_twice = {
    function() return model(function(x) return nn.linear("a", nn.linear("a", x, 8), 8) end) end,
    function() return model(function(x) return nn.linear("b", nn.linear("a", x, 8), 8) end) end,
  },
  parameter_of_other_dims = {
    function()
      return model(function(x)
        local w = nn.parameter("w", { 8, 8 }, "ones")
        return nn.linear("b", nn.linear("a", x, 8, { weight = w }), 4, { weight = nn.parameter("w", { 4, 8 }) })
      end)
    end,
    function()
      return model(function(x)
        local w = nn.parameter("w", { 8, 8 }, "ones")
        return nn.linear("b", nn.linear("a", x, 8, { weight = w }), 8, { weight = nn.parameter("w", { 8, 8 }) })
      end)
    end,
  },
  tied_to_another_size = {
    function()
      return model(function(x) return nn.linear("a", x, 4, { weight = nn.parameter("w", { 8, 8 }, "ones") }) end)
    end,
    function()
      return model(function(x) return nn.linear("a", x, 4, { weight = nn.parameter("w", { 4, 8 }, "ones") }) end)
    end,
  },
  tied_with_init = {
    function()
      return model(function(x)
        return nn.linear("a", x, 8, { weight = nn.parameter("w", { 8, 8 }), init = { "normal", 0.02 } })
      end)
    end,
    function()
      return model(function(x)
        return nn.linear("a", x, 8, { weight = nn.parameter("w", { 8, 8 }, { "normal", 0.02 }), bias = true })
      end)
    end,
  },
  scattered_into_parameters = {
    function()
      return strategy { reduce = function(unit)
        prun.reduce_scatter(unit.grads, { axis = "dp", into = unit.params })
      end }
    end,
    function() return strategy {} end,
  },
  freed_twice = {
    function() return strategy { after = function(full) prun.free(full) end } end,
    function() return strategy {} end,
  },
  gradients_of_another_class = {
    function()
      return strategy { reduce = function(unit, all)
        prun.reduce_scatter(all[1], { axis = "dp", into = unit.grad_shard })
      end }
    end,
    function()
      return strategy { reduce = function(unit, all)
        prun.reduce_scatter(all[#all], { axis = "dp", into = unit.grad_shard })
      end }
    end,
  },
  method_with_a_dot = {
    function() return strategy { body = function(unit) unit.after("forward", function() end) end } end,
    function() return strategy { body = function(unit) unit:after("forward", function() end) end } end,
  },
  method_misspelt = {
    function() return strategy { body = function(unit) unit.grads:acumulate() end } end,
    function() return strategy { body = function(unit) unit.grads:accumulate() end } end,
  },
  traits_misspelt = {
    function() return strategy { traits = { split = "batch" } } end,
    function() return strategy { traits = { splits = "batch" } } end,
  },
  traits_of_a_schedule_misspelt = {
    function() return schedule(function(i) prun.forward(i) end, { chunk = 1 }) end,
    function() return schedule(function(i) prun.forward(i) end, { chunks = 1 }) end,
  },
  microbatch_is_a_text = {
    function() return schedule(function(i) prun.forward(tostring(i)) end) end,
    function() return schedule(function(i) prun.forward(i / 1) end) end,
  },
  two_that_take_the_rest = {
    function() return plan { mesh = prun.mesh { dp = prun.rest, tp = prun.rest } } end,
    function() return plan { mesh = prun.mesh { dp = prun.rest, tp = 1 } } end,
  },
  tensor_parallel_over_stages = {
    function()
      return plan { mesh = prun.mesh { pp = prun.world }, micro = 2,
                    strategy = { prun.pipeline {}, prun.tensor_parallel { axis = "pp" } } }
    end,
    function() return plan { mesh = prun.mesh { pp = prun.world }, micro = 2, strategy = { prun.pipeline {} } } end,
  },
  -- names of other systems
  torch_bucket = {
    function() return plan { strategy = { prun.ddp { bucket_cap_mb = 25 } } } end,
    function() return plan { strategy = { prun.ddp { bucket = "25 MiB" } } } end,
  },
  torch_fully_shard = {
    function() return plan { strategy = { prun.fully_shard {} } } end,
    function() return plan { strategy = { prun.fsdp {} } } end,
  },
  torch_unused_parameters = {
    function() return plan { strategy = { prun.ddp { find_unused_parameters = true } } } end,
    function() return plan { strategy = { prun.ddp {} } } end,
  },
  deepspeed_prefetch = {
    function() return plan { strategy = { prun.zero3 { stage3_prefetch_bucket_size = 5e7 } } } end,
    function() return plan { strategy = { prun.zero3 { prefetch = 2 } } } end,
  },
  huggingface_layers = {
    function() return plan { model = prun.models.llama { num_hidden_layers = 2 } } end,
    function() return plan { model = prun.models.llama { layers = 2, width = 16, heads = 2 } } end,
  },
  -- errors of Lua itself
  loop_over_nothing = {
    function()
      local layers
      for _, layer in ipairs(layers) do prun.print(layer) end
    end,
    function() return plan {} end,
  },
  field_of_a_tensor = {
    function() return model(function(x) return nn.linear("a", x, x.size) end) end,
    function() return model(function(x) return nn.linear("a", x, x.shape[2]) end) end,
  },
  -- programs
  tensor_of_another_rank = {
    function()
      return prun.program(function()
        kept = kept or prun.full({ 4 }, 1)
        prun.all_reduce(kept, "sum")
      end)
    end,
    function() return prun.program(function() prun.all_reduce(prun.full({ 4 }, 1), "sum") end) end,
  },
  count_above_its_most = {
    function() return prun.program(function() prun.print(prun.iota(prun.random_int(1, 9), { max = 5 })) end) end,
    function() return prun.program(function() prun.print(prun.iota(prun.random_int(0, 5), { max = 5 })) end) end,
  },
  count_negative = {
    function() return prun.program(function() prun.print(prun.iota(prun.random_int(-1, 5), { max = 5 })) end) end,
    function() return prun.program(function() prun.print(prun.iota(prun.random_int(1, 5), { max = 5 })) end) end,
  },
  number_beyond_its_type = {
    function() return prun.program(function() prun.print(prun.full(4, 2 ^ 31, { dtype = "i32" })) end) end,
    function() return prun.program(function() prun.print(prun.full(4, 2 ^ 30, { dtype = "i32" })) end) end,
  },
  axis_for_the_reduction = {
    function() return prun.program(function() prun.all_reduce(prun.full(4, 1), { axis = "world" }) end) end,
    function() return prun.program(function() prun.all_reduce(prun.full(4, 1), "sum", { axis = "world" }) end) end,
  },
  -- more about hooks
  freed_twice_but_for_the_last = {
    function()
      return strategy { after = function(full, unit)
        prun.ensure(full, function() return prun.all_gather(unit.params, { axis = "dp", keep = true }) end)
        prun.free(full, { keep = unit.last })
        prun.free(full, { keep = unit.last })
      end }
    end,
    function() return strategy {} end,
  },
  unit_of_another_class = {
    function()
      local first
      return strategy { body = function(unit)
        first = first or unit
        first.grads:accumulate()
      end }
    end,
    function() return strategy { body = function(unit) unit.grads:accumulate() end } end,
  },
  default_out_of_its_range = {
    function() return plan { model = prun.model("own", { width = { 0, "size", least = 1 } }, print) {} } end,
    function()
      return plan { data = prun.data.random { batch = 8, inputs = 4, outputs = 4 },
                    model = prun.model("own", { width = { 4, "size", least = 1 } }, function(opt, batch)
        return prun.losses.mean(nn.linear("a", batch.x, opt.width))
      end) {} }
    end,
  },
  bound_misspelt = {
    function() return prun.model("own", { width = { 4, "size", leest = 1 } }, print) end,
    function()
      return plan { data = prun.data.random { batch = 8, inputs = 4, outputs = 4 },
                    model = prun.model("own", { width = { 4, least = 1 } }, function(opt, batch)
        return prun.losses.mean(nn.linear("a", batch.x, opt.width))
      end) {} }
    end,
  },
  axes_by_default = {
    function()
      return plan { strategy = { prun.strategy("own", { axis = "dp", over = { "replicate" } }, function() end) {} } }
    end,
    function()
      return plan { mesh = prun.mesh { replicate = 1, dp = prun.world },
                    strategy = { prun.strategy("own", { axis = "dp", over = { "replicate", "dp" } }, function(unit, opt)
        unit:after("backward", function()
          for _, axis in ipairs(opt.over) do prun.all_reduce(unit.grads, { axis = axis }) end
        end)
      end) {} } }
    end,
  },
  tensor_is_changed = {
    function()
      return model(function(x)
        x.shape = { 4, 16 }
        return nn.linear("a", x, 8)
      end)
    end,
    function()
      return model(function(x)
        x.shape[2] = 16  -- shape is a copy
        return nn.linear("a", x, x.shape[2])
      end)
    end,
  },
  model_without_parameters = {
    function() return model(function(x) return nn.relu(x) end) end,
    function() return model(function(x) return nn.relu(nn.linear("a", x, 8)) end) end,
  },
  table_is_printed = {
    function() return prun.program(function() prun.print("all", { 1, 2 }) end) end,
    function() return prun.program(function() prun.print("all", 1, nil, true, prun.full(2, 1)) end) end,
  },
  option_of_another_word = {
    function() return plan { lr = 0.1 } end,
    function() return plan { optimizer = prun.sgd { lr = 0.1 } } end,
  },
  huggingface_batch = {
    function() return plan { train_batch_size = 8 } end,
    function() return plan { data = prun.data.bytes { path = "text/sample.txt", batch = 8 } } end,
  },
  bytes_beyond_all = {
    function()
      return plan { micro = 1024, optimizer = prun.sgd {},
                    data = prun.data.random { batch = 1024 * prun.world, inputs = 1, outputs = 1 },
                    model = function(batch) return prun.losses.mean(nn.linear("a", batch.x, 2 ^ 45)) end }
    end,
    function()
      return plan { micro = 1024, optimizer = prun.sgd {},
                    data = prun.data.random { batch = 1024 * prun.world, inputs = 1, outputs = 1 },
                    model = function(batch) return prun.losses.mean(nn.linear("a", batch.x, 2 ^ 5)) end }
    end,
  },
  parameters_of_one_name = {
    function()
      return model(function(x)
        x = nn.unit("a", function() return nn.linear("b.c", x, 8) end)
        return nn.unit("a.b", function() return nn.linear("c", x, 8) end)
      end)
    end,
    function()
      return model(function(x)
        x = nn.unit("a", function() return nn.linear("b.c", x, 8) end)
        return nn.unit("a.b", function() return nn.linear("d", x, 8) end)
      end)
    end,
  },
  axis_named_rank = {
    function() return prun.program(print, { mesh = prun.mesh { { "rank", 1 }, { "x", prun.world } } }) end,
    function()
      return prun.program(function(r) prun.print(r.rank, r.x) end, { mesh = prun.mesh { { "x", prun.world } } })
    end,
  },
  torch_dtype = {
    function() return plan { dtype = "bfloat16" } end,
    function() return plan { dtype = "bf16" } end,
  },
  torch_reduction = {
    function() return prun.program(function() prun.all_reduce(prun.full(4, 1), "mean") end) end,
    function() return prun.program(function() prun.all_reduce(prun.full(4, 1), "avg") end) end,
  },
  handle_of_another_strategy = {
    function()
      local first = {}
      local function own(name)
        return prun.strategy(name, { axis = "dp" }, function(unit, opt)
          unit:before("forward", function() first[unit.name] = first[unit.name] or prun.all_gather(unit.params, opt) end)
          unit:after("forward", function() prun.free(first[unit.name]) end)
        end) {}
      end
      return plan { strategy = { own "one", own "two" } }
    end,
    function() return strategy {} end,
  },
  number_that_a_double_rounds = {
    function() return prun.program(function() prun.print(prun.full(4, 2^53 // 1 | 1, { dtype = "i64" })) end) end,
    function() return prun.program(function() prun.print(prun.full(4, 2^53 // 1 | 2, { dtype = "i64" })) end) end,
  },
  -- fields that there are not
  dtype_as_a_field = {
    function() return plan { dtype = prun.bf16 } end,
    function() return plan { dtype = "bf16" } end,
  },
  dtype_that_is_missing = {
    function() return plan { dtype = prun.float16 } end,
    function() return plan { dtype = "bf16" } end,
  },
  device_as_a_field = {
    function() return plan { device = prun.gpu } end,
    function() return plan {} end,
  },
  option_as_a_field = {
    function() return plan { steps = prun.steps } end,
    function() return plan { steps = 4 } end,
  },
  model_in_the_singular = {
    function() return plan { model = prun.model.gpt { layers = 1, width = 8, heads = 1, context = 8 } } end,
    function() return plan { model = prun.models.gpt { layers = 1, width = 8, heads = 1, context = 8 } } end,
  },
  family_left_out = {
    function() return plan { data = prun.bytes { path = "text/sample.txt", batch = 8 } } end,
    function() return plan { data = prun.data.bytes { path = "text/sample.txt", batch = 8 } } end,
  },
  variant_of_a_model = {
    function() return plan { model = prun.models.gpt.small {} } end,
    function() return plan {} end,
  },
  option_of_a_strategy_as_a_field = {
    function() return plan { strategy = { prun.zero3.prefetch(2) } } end,
    function() return plan { strategy = { prun.zero3 { prefetch = 2 } } } end,
  },
  strategy_of_a_family = {
    function() return plan { strategy = { prun.strategy.zero3 {} } } end,
    function() return plan { strategy = { prun.zero3 {} } } end,
  },
  schedule_as_a_field = {
    function() return plan { strategy = { prun.pipeline { schedule = prun.schedule.gpipe } } } end,
    function()
      return plan { mesh = prun.mesh { pp = prun.world }, micro = 2, strategy = prun.pipeline { schedule = "gpipe" } }
    end,
  },
  field_of_a_layer = {
    function() return model(function(x) return nn.linear("a", x, nn.linear.weight) end) end,
    function() return model(function(x) return nn.linear("a", x, 8) end) end,
  },
  field_of_a_function_of_the_plan = {
    function() return plan { steps = plan.steps } end,
    function() return plan { steps = 4 } end,
  },
  optimizers_of_torch = {
    function() return plan { optimizer = prun.optim.adamw { lr = 0.1 } } end,
    function() return plan { optimizer = prun.adamw { lr = 0.1 } } end,
  },
  experts_that_are_missing = {
    function() return plan { mesh = prun.mesh { ep = prun.world }, strategy = { prun.expert_parallel {} } } end,
    function()
      return plan { mesh = prun.mesh { ep = prun.world }, strategy = { prun.expert_parallel {} },
                    model = prun.models.moe { vocab = 256, layers = 2, width = 16, heads = 2, context = 8 } }
    end,
  },
}

local case = cases[arg.case] or error("no case '" .. arg.case .. "'", 0)
return (arg.right and case[2] or case[1])()
