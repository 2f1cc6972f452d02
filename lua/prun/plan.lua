-- prun.plan { mesh, model, data, strategy, optimizer, steps }: a training job. The model is recorded for one rank's
-- share of the batch; the strategies are recorded once for each class of units.

local adapters = require "prun.adapters"
local checkpoint = require "prun.checkpoint"
local data = require "prun.data"
local evaluation = require "prun.eval"
local frozen = require "prun.frozen"
local graph = require "prun.graph"
local groups = require "prun.groups"
local kinds = require "prun.kinds"
local model_results = require "prun.model_results"
local optimizer = require "prun.optimizer"
local schema = require "prun.schema"
local shrink = require "prun.shrink"
local strategy = require "prun.strategy"

local entries = schema.register("prun.plan", {
  { name = "mesh", kind = "mesh", help = "the ranks: prun.mesh { dp = prun.world }" },
  { name = "model", kind = "model", help = "the model to train, such as prun.models.gpt { ... }" },
  { name = "data", kind = "data", help = "samples, such as prun.data.bytes { ... }" },
  { name = "strategy", kind = "strategies", default = {}, help = "a list, such as { prun.zero3 { axis = \"dp\" } }" },
  { name = "optimizer", kind = "optimizer", help = "such as prun.adamw { lr = 3e-4 }" },
  { name = "init", kind = "weights", optional = true,
    help = "weights to begin with, such as prun.init.from { path = \"model\" }; else the model's initial values" },
  { name = "frozen", kind = "text", optional = true,
    help = 'parameters that are not trained, such as "embed*|block*.ln1.*": * is any characters' },
  { name = "lora", kind = "lora", optional = true,
    help = 'low-rank adapters, all else is frozen, such as prun.lora { match = "block*.qkv", rank = 8 }' },
  { name = "metrics", kind = "text", default = "evaluations", choices = { "evaluations", "steps" },
    help = "what computes the metrics that the model returns; steps: evaluations do, too" },
  { name = "micro", kind = "integer", default = 1, least = 1, most = 1000000, help = "microbatches of a step" },
  { name = "eval", kind = "eval", optional = true, help = "such as prun.eval { every = 50, batches = 4 }" },
  { name = "checkpoint", kind = "checkpoint", optional = true,
    help = "such as prun.checkpoint { every = 500, keep = 3 }; --checkpoint DIR says where" },
  { name = "report", kind = "table", optional = true,
    help = "norms of each unit's parameters and gradients in --metrics: { every = 10, norms = true }" },
  { name = "steps", kind = "integer", default = 20, least = 1, most = schema.most_exact, help = "training steps" },
  { name = "seed", kind = "integer", default = 0, least = 0, most = math.maxinteger,
    help = "of initial weights and the order of data" },
  { name = "dtype", kind = "text", default = "f32", choices = { "f32", "bf16", "f64" }, help = "what compute uses" },
  { name = "reduce", kind = "text", default = "any", choices = { "any", "rank_order" },
    help = "rank_order: sums in the order of ranks, the same bits on every transport" },
})

local report_entries = schema.register("prun.plan.report", {
  { name = "every", kind = "integer", least = 1, most = schema.most_exact,
    help = "a report comes after every so many steps" },
  { name = "norms", kind = "boolean", default = true, help = "of each unit's parameters and gradients" },
})

local most_step_bytes = 2.0 ^ 58  -- with gradients, state and padding, sums fit into 64 bits

-- Returns the plan's record of a report, or nil if nothing is requested.
local function report_result(given, site)
  local options = schema.check("prun.plan: report", report_entries, given, site)
  return options.norms and { every = options.every, site = site } or nil
end

local function check_strategies(list, site)
  local last = 0
  for place in pairs(list) do
    if math.type(place) ~= "integer" then
      host.fail(("prun.plan: 'strategy' is a list without names, and has '%s'"):format(tostring(place)),
        host.site_of_word(site, "strategy"))
    end
    last = math.max(last, place)
  end
  for i = 1, last do
    if kinds.kind_of(list[i]) ~= "strategy" then
      host.fail(("strategy %d in the list is %s; it should be such as prun.zero3 { axis = \"dp\" }"):format(i,
        schema.show(list[i])), host.site_of_word(site, "strategy"))
    end
  end
  return list
end

local function axis_names(mesh)
  local names = {}
  for i, axis in ipairs(mesh.axes) do names[i] = axis[1] end
  return names
end

-- Each of these reduces the gradients of all units over its axis, so a second one on the axis has nothing to do.
local data_parallel = { ddp = true, zero1 = true, zero2 = true, zero3 = true }

-- Moves the axes of strategies that share (prun.expert_parallel) and that are another's, from their own to shared ones.
local function share_axes(strategies)
  local owned = {}
  for _, one in ipairs(strategies) do
    for _, axis in ipairs(one.axes) do owned[axis] = owned[axis] or not one.shares and not one.pipeline end
  end
  local by = {}  -- axis -> the strategy that shares it
  for _, one in ipairs(strategies) do
    local own = {}
    for _, axis in ipairs(one.axes) do
      if one.shares and by[axis] then
        host.fail(("axis '%s' has the layers of %s (%s:%d) already"):format(axis, by[axis].name, by[axis].site[1],
          by[axis].site[2]), host.site_of_word(one.site, "axis"))
      end
      if one.shares and owned[axis] then one.shared[axis], by[axis] = true, one else own[#own + 1] = axis end
    end
    one.axes = own
  end
end

-- Checks that every axis of a strategy is an axis of the mesh and that no two strategies split the same thing.
local function check_axes(mesh, strategies)
  local used = {}
  for _, one in ipairs(strategies) do
    for _, axis in ipairs(one.axes) do
      if not mesh.size_of[axis] then
        local names = axis_names(mesh)
        host.fail(("the mesh has no axis '%s'%s"):format(
          axis, #names > 0 and host.did_you_mean(axis, names) or ": it has none"),
          host.site_of_word(one.site, "axis"))
      end
      local other = used[axis]
      if other and (one.pipeline == nil) ~= (other.pipeline == nil) then
        local stages, tenant = other.pipeline and other or one, other.pipeline and one or other
        host.fail(("axis '%s' has the stages of the pipeline (%s:%d), and %s works on it, too: its ranks have " ..
          "different layers; give each its own axis"):format(axis, stages.site[1], stages.site[2], tenant.name),
          host.site_of_word(tenant.site, "axis"))
      end
      if other and (other.splits ~= one.splits or other.name == one.name or
          data_parallel[one.name] and data_parallel[other.name]) then
        host.fail(("axis '%s' is used twice: %s splits %s over it, and %s (%s:%d) splits %s; give each its own"):format(
          axis, one.name,
          one.splits == "nothing" and "the weights" or "the " .. one.splits, other.name, other.site[1], other.site[2],
          other.splits == "nothing" and "the weights" or "the " .. other.splits), host.site_of_word(one.site, "axis"))
      end
      used[axis] = one
    end
  end
  for _, axis in ipairs(mesh.axes) do
    if axis[2] > 1 and not used[axis[1]] then
      host.fail(("no strategy uses mesh axis '%s' of %d ranks: they would all do the same; give one the option " ..
        "axis = \"%s\""):format(axis[1], axis[2], axis[1]), mesh.site)
    end
  end
end

-- Returns the mesh axes that divide the batch, in the mesh's order, and their number of ranks.
local function batch_axes(mesh, strategies)
  local axes, ranks = {}, 1
  for _, axis in ipairs(mesh.axes) do
    for _, one in ipairs(strategies) do
      local here = false
      for _, name in ipairs(one.axes) do here = here or name == axis[1] end
      if here and one.splits == "batch" then
        axes[#axes + 1], ranks = axis[1], ranks * axis[2]
        break
      end
    end
  end
  return axes, ranks
end

-- Records the model for `batch` samples of each of `ranks` ranks; returns the recording, the loss and the metrics.
local function record_model(plan, model, batch, ranks)
  local recorded, loss, metrics = graph.record(plan.dtype, true, function()
    graph.current.sample_ranks, graph.current.microbatches = ranks, plan.micro
    if plan.lora then graph.current.lora = adapters.begin(plan.lora) end
    local inputs = {}
    for _, input in ipairs(data.inputs(plan.data, batch, plan.dtype)) do
      inputs[input.name] = graph.input(input.name, input.dtype, input.shape)
      graph.current.may_ignore[input.name] = input.may_ignore
    end
    local held = plan.eval and plan.eval.options.data
    for _, input in ipairs(held and data.inputs(held, batch, plan.dtype) or {}) do
      graph.current.may_ignore[input.name] = graph.current.may_ignore[input.name] or input.may_ignore
    end
    setmetatable(inputs, { __index = function(_, name)
      local names = {}
      for known in pairs(inputs) do names[#names + 1] = known end
      local packed = name == "documents" or name == "positions"
      host.fail(("prun.data.%s gives no '%s'%s"):format(plan.data.kind, tostring(name), packed and
        ": prun.data.tokens with pack = \"documents\" does" or host.did_you_mean(tostring(name), names)))
    end })
    return model.build(inputs)
  end)
  return recorded, loss, metrics
end

local function require_parameters(recorded, site)
  for _, unit in ipairs(recorded.units) do
    if #unit.parameters > 0 then return end
  end
  host.fail("the model has no parameters, such as those of nn.linear: there is nothing to train", site)
end

-- Returns the classes of units in order, each with its layer names; units that repeat others share them.
local function classes_of(units)
  local classes, seen = {}, {}
  for _, unit in ipairs(units) do
    local class = seen[unit.class]
    if not class then
      class = { name = unit.class, layers = {} }
      classes[#classes + 1], seen[unit.class] = class, class
    end
    if not unit.like then
      for name in pairs(unit.parameter_of) do class.layers[name:match("^(.*)%.[^.]*$") or name] = true end
    end
  end
  return classes
end

-- Returns the names of the numbers that evaluations report.
local function evaluated_numbers(results)
  local names = { "eval_loss" }
  for _, number in ipairs(results.named or {}) do names[#names + 1] = "eval_" .. number.name end
  return names
end

-- Checks the numbers of samples and tokens of the whole run, which are counted exactly.
local function check_samples(plan)
  local function check(what, count, word, place)
    local most = schema.most_exact
    if 1.0 * count * plan.data.options.batch * (plan.data.options.context or 1) > most then
      host.fail(("prun.plan: %d %s of %d samples are more than can be counted, 2^53: lower '%s' or 'batch'"):format(
        count, what, plan.data.options.batch, word), place)
    end
  end
  check("steps", plan.steps, "steps", plan.data.site)
  local batches = plan.eval and plan.eval.options.batches
  if math.type(batches) == "integer" then check("batches", batches, "batches", plan.eval.site) end
end

-- Returns the only pipeline among the strategies.
local function find_pipeline(strategies)
  local found
  for _, one in ipairs(strategies) do
    if one.pipeline then
      if found then
        host.fail(("a plan has one pipeline; the other is at %s:%d"):format(found.site[1], found.site[2]), one.site)
      end
      found = one
    end
  end
  return found
end

-- Returns the parts of the plan that differ at the other sizes of host.shrink, or nil if there are none.
local function at_other_sizes(plan, pipeline)
  local all = {}
  if not host.shrink or #host.shrink.others == 0 then return nil end
  for i, sizes in ipairs(host.shrink.others) do
    local mesh = { axes = {}, size_of = sizes.axes, site = plan.mesh.site }
    for at, axis in ipairs(plan.mesh.axes) do
      local name, size = axis[1], sizes.axes[axis[1]]
      mesh.axes[at] = { name, size }
      if size ~= axis[2] and not (pipeline and name == pipeline.axes[1]) then host.fail("other sizes: " .. name) end
    end
    if sizes.batch * plan.micro ~= plan.data.options.batch * sizes.micro then host.fail("other sizes: batch") end
    all[i] = { mesh = { axes = mesh.axes, site = plan.mesh.site }, micro = sizes.micro, batch = sizes.batch,
               pipeline = pipeline and pipeline.pipeline(pipeline, mesh, sizes.micro) }
  end
  return all
end

return function(given)
  local site = host.site("user")
  local plan = schema.check("prun.plan", entries, given, site)
  local strategies = check_strategies(plan.strategy, site)
  local generates = host.shrink and host.shrink.tensor_ranks > 0  -- on its own ranks
  if plan.mesh.ranks ~= host.world and not generates then
    host.fail(("the mesh %s is for %d rank%s, and there %s %d (--nproc)"):format(plan.mesh.text, plan.mesh.ranks,
      plan.mesh.ranks == 1 and "" or "s", host.world == 1 and "is" or "are", host.world), plan.mesh.site)
  end
  share_axes(strategies)
  check_axes(plan.mesh, strategies)
  if host.shrink then strategies = shrink(plan, strategies) end
  local axes, ranks = batch_axes(plan.mesh, strategies)
  local batch, pieces = plan.data.options.batch, ranks * plan.micro
  if batch % pieces ~= 0 then
    local divisor = ("%d microbatches"):format(plan.micro)
    if ranks > 1 then
      divisor = ("the %d ranks%s of %s"):format(ranks, plan.micro == 1 and "" or " times " .. divisor, plan.mesh.text)
    end
    host.fail(("the global batch of %d samples is not divisible by %s; the next that is: %d"):format(batch, divisor,
      (batch // pieces + 1) * pieces), host.site_of_word(plan.data.site, "batch"))
  end
  check_samples(plan)
  if plan.lora and plan.frozen then
    host.fail("prun.plan: 'lora' freezes all but its adapters and what its option `train` matches: drop 'frozen'",
      host.site_of_word(site, "frozen"))
  end
  if generates then plan.lora = nil end  -- the weights that it reads contain them
  local model = plan.model
  if type(model) == "function" then model = { build = model, site = host.site_of_word(site, "model") } end
  data.agree(plan.data, model)
  local source = data.result(plan.data)
  local recorded, loss, metrics = record_model(plan, model, batch // pieces, ranks)
  local results = model_results(recorded, loss, metrics, plan.metrics == "steps", model.site)
  require_parameters(recorded, model.site)
  if plan.data.options.last == "pad" and not next(recorded.shares_of) then
    host.fail("last = \"pad\" adds samples whose targets are ignored, and no loss of this model can ignore targets: " ..
      "use \"drop\", or prun.losses.cross_entropy", host.site_of_word(plan.data.site, "last"))
  end
  if recorded.bytes * plan.micro > most_step_bytes then
    host.fail(("prun.plan: the tensors of %d microbatches are %.3g bytes; at most 2^58 can be planned"):format(
      plan.micro, recorded.bytes * plan.micro), host.site_of_word(site, "micro"))
  end
  local result = graph.result(recorded)
  for i, numbers in ipairs(groups.numbers(plan.optimizer, recorded) or {}) do result.units[i].groups = numbers end
  local marks
  if plan.frozen and not generates then marks = frozen(plan.frozen, recorded, site) end
  if plan.lora then marks = adapters.marks(plan.lora, recorded) end
  for i, of_unit in ipairs(marks or {}) do result.units[i].frozen = of_unit end
  result.path, result.kind = host.plan_path, "plan"
  result.mesh = { axes = plan.mesh.axes, site = plan.mesh.site }
  result.loss, result.terms, result.named = results.loss, results.terms, results.named
  result.steps, result.seed, result.micro = plan.steps, plan.seed, plan.micro
  result.reduce, result.dtype, result.data = plan.reduce, plan.dtype, source
  result.batch_axes = axes
  if model.options then result.model = { name = model.name, arguments = model.options } end
  for name, id in pairs(recorded.outputs) do
    result.outputs = result.outputs or {}
    table.insert(result.outputs, { name = name, value = id })
  end
  if plan.eval then result.eval = evaluation.result(plan.eval, plan, model, source) end
  if plan.checkpoint then
    result.checkpoint = checkpoint.result(plan.checkpoint, plan.eval, evaluated_numbers(results))
  end
  if plan.init then
    result.initial_weights = { path = plan.init.path, base = plan.init.base, partial = plan.init.partial,
                               site = plan.init.site }
  end
  if plan.report then result.report = report_result(plan.report, host.site_of_word(site, "report")) end
  result.optimizer = optimizer.result(plan.optimizer, plan.steps)
  result.strategies = {}
  local classes = classes_of(recorded.units)
  for i, one in ipairs(strategies) do result.strategies[i] = strategy.result(one, classes, plan.mesh) end
  if plan.lora then
    result.lora = plan.lora.options
    for _, one in ipairs(result.strategies) do adapters.place(one, classes) end
  end
  local pipeline = find_pipeline(strategies)
  if pipeline then result.pipeline = pipeline.pipeline(pipeline, plan.mesh, plan.micro) end
  result.others = at_other_sizes(plan, pipeline)
  return host.result(result)
end
