-- prun.strategy(name, defaults, body, traits): body(unit, opt) declares, for one class of units, the placements of
-- parameters and activations and the communication before and after each phase. It runs once per class and records.
--
-- A strategy works on the mesh axis of its option `axis` (or on the axes of its option `over`). `traits.splits` is the
-- dimension that the axis divides: "batch" (the default), "tokens" of each sample, or "nothing" of the data. With
-- `traits.shares` an axis may be another strategy's: this one then divides nothing over it and only places layers.
-- `traits.differs`: the reason why its result differs from one rank's, which prun check --prove rejects otherwise.

local intents = require "prun.intents"
local placements = require "prun.placements"
local record = require "prun.record"
local schema = require "prun.schema"

local phases = { "forward", "backward" }
local phase = { name = "phase", kind = "text", choices = phases, help = "forward or backward" }
local hook_fn = { name = "hook", kind = "fn", help = "a function, which records what happens then" }

-- A unit's hooks run in order: a handle may be freed again only after it was gathered again.
local function check_frees(hooks)
  local freed = {}  -- handle -> its free; if it keeps the last unit, it counts only within its phase
  for i, hook in ipairs(hooks) do
    if i > 1 and hook.phase ~= hooks[i - 1].phase then
      for handle, intent in pairs(freed) do freed[handle] = not intent.keep_last and intent or nil end
    end
    for _, intent in ipairs(hook.intents) do
      local before = intent.handle and freed[intent.handle]
      if intent.kind == "free" then
        if before then
          host.fail(("prun.free: this was freed before, at %s:%d, and not gathered since"):format(before.site[1],
            before.site[2]), intent.site)
        end
        freed[intent.handle] = intent
      elseif before then
        freed[intent.handle] = nil
      end
    end
  end
end

-- Gradients exist only after backward; a reduction in another hook would read those of an earlier microbatch.
local function check_reductions(hook)
  if hook.when == "after" and hook.phase == "backward" then return end
  for _, intent in ipairs(hook.intents) do
    if intent.kind ~= "print" and (intent.target == "grads" or intent.target == "grad_shard") then
      host.fail(('unit:%s("%s", ...) runs before backward has computed unit.%s: call prun.%s in ' ..
        'unit:after("backward", ...)'):format(hook.when, hook.phase, intent.target, intent.kind), intent.site)
    end
  end
end

-- Runs the body for one class; returns the plan's record of it.
local function record_unit(strategy, class)
  local result = { class = class.name, sharded = false, shard_axis = "", accumulate = false,
                   recompute = false, recompute_whole = false, sync_every = 0, sync = {}, site = strategy.site,
                   layers = {}, activations = {}, hooks = {} }
  local hooks = {}
  local function adder(when)
    return intents.method(result, "unit", "unit:" .. when, { phase, hook_fn }, function(_, of, fn)
      hooks[#hooks + 1] = { when = when, phase = of, fn = fn }
    end)
  end
  local unit = schema.closed("a unit", {
    kind_of = "unit", name = class.name, last = { kind_of = "last" },
    params = placements.params(result), grads = placements.grads(result),
    grad_shard = intents.target("grad_shard", result),
    activations = placements.activations(result), optimizer = placements.optimizer(result),
    find = placements.find(result, class.layers),
    -- Returns whether the axis is that of another strategy, which reduces the gradients over it.
    shares = intents.method(result, "unit", "unit:shares", { { name = "axis", kind = "text", help = "of the mesh" } },
      function(_, axis) return strategy.shared[axis] == true end),
    before = adder "before", after = adder "after",
    -- Between steps, every n steps: synchronizes weights that ranks have let drift apart.
    every = intents.method(result, "unit", "unit:every", {
      { name = "steps", kind = "integer", least = 1, most = schema.most_exact, help = "after every so many of them" },
      hook_fn,
    }, function(_, steps, fn)
      if result.sync_every ~= 0 and result.sync_every ~= steps then
        host.fail(("unit:every(%d, ...) of a unit that has unit:every(%d, ...): one rhythm each"):format(
          steps, result.sync_every))
      end
      result.sync_every = steps
      hooks[#hooks + 1] = { when = "every", fn = fn }
    end),
    -- Forward activations inside the unit are not kept: backward recomputes them.
    recompute = intents.method(result, "unit", "unit:recompute", {
      { name = "whole", kind = "boolean", optional = true, help = "also what backward has no use for" },
      { name = "stages", kind = "integers", optional = true, least = 0, help = "of a pipeline; by default all" },
    }, function(_, whole, stages)
      result.recompute_stages = stages
      result.recompute, result.recompute_whole = true, result.recompute_whole or whole == true
    end),
  })
  intents.within(result, strategy.body, unit, strategy.options)
  local recorder = intents.recorder(result)
  for _, of in ipairs(phases) do
    for _, when in ipairs { "before", "after" } do
      for _, hook in ipairs(hooks) do
        if hook.phase == of and hook.when == when then
          recorder.intents = {}
          record.within("a strategy's hook", recorder.words, intents.within, result, hook.fn)
          result.hooks[#result.hooks + 1] = { when = when, phase = of, intents = recorder.intents }
        end
      end
    end
  end
  for _, hook in ipairs(result.hooks) do check_reductions(hook) end
  check_frees(result.hooks)
  for _, hook in ipairs(hooks) do
    if hook.when == "every" then
      recorder.intents = {}
      record.within("a strategy's hook", recorder.words, intents.within, result, hook.fn)
      for _, intent in ipairs(recorder.intents) do
        if intent.kind ~= "all_reduce" or intent.target ~= "params" then
          host.fail(("between steps a strategy averages parameters, prun.all_reduce(unit.params, ...), not %s of %s")
            :format(intent.kind, intent.target), intent.site)
        end
        result.sync[#result.sync + 1] = intent
      end
    end
  end
  return result
end

local make = {}

local function names_in_order(list)
  local names = {}
  for i, one in ipairs(list) do names[i] = one.name end
  return table.concat(names, ", ")
end

-- A strategy that splits nothing of the data must place something, because otherwise its ranks would be replicas
-- (unless there is one rank), and so must one that `needs` layers; a strategy without an axis must have another effect.
local function require_effect(strategy, units, classes, mesh)
  if strategy.splits ~= "nothing" and strategy.needs == "" or strategy.pipeline then return end
  local ranks = 1
  for _, axis in ipairs(strategy.axes) do ranks = ranks * mesh.size_of[axis] end
  for axis in pairs(strategy.shared) do ranks = ranks * mesh.size_of[axis] end
  local without = #strategy.axes == 0 and not next(strategy.shared)
  if not without and ranks == 1 then return end
  for _, unit in ipairs(units) do
    if #unit.layers > 0 or #unit.activations > 0 then return end
    if without and (unit.recompute or #unit.hooks > 0) then return end
  end
  if without then
    host.fail(("the strategy %s does nothing with any unit of the model, which has: %s"):format(
      strategy.name, names_in_order(classes)), strategy.site)
  end
  local names = {}
  for _, class in ipairs(classes) do
    for name in pairs(class.layers) do names[#names + 1] = name end
  end
  host.fail(("the strategy %s finds none of its layers in the model, which has: %s%s"):format(strategy.name,
    table.concat(names, ", "), strategy.needs and strategy.needs ~= "" and "; it needs " .. strategy.needs or ""),
    strategy.site)
end

-- A strategy places over its own axes, and communicates over axes of the mesh.
local function require_axes(strategy, unit, mesh)
  local own, all = {}, {}
  for _, axis in ipairs(strategy.axes) do own[axis] = true end
  for axis in pairs(strategy.shared) do own[axis] = true end
  for i, axis in ipairs(mesh.axes) do all[i] = axis[1] end
  local function places(axis, site)
    if own[axis] then return end
    host.fail(("the strategy %s places over axis '%s'%s; it works on %s"):format(strategy.name, axis,
      mesh.size_of[axis] and "" or ", which the mesh has not", table.concat(strategy.axes, ", ")), site)
  end
  local function communicates(intent)
    if intent.axis == nil or mesh.size_of[intent.axis] then return end
    host.fail(("the mesh has no axis '%s'%s"):format(intent.axis, host.did_you_mean(intent.axis, all)), intent.site)
  end
  for axis in unit.shard_axis:gmatch "[^,]+" do places(axis, unit.site) end
  for _, one in ipairs(unit.layers) do places(one.axis, one.site) end
  for _, one in ipairs(unit.activations) do places(one.axis, one.site) end
  for _, hook in ipairs(unit.hooks) do
    for _, intent in ipairs(hook.intents) do communicates(intent) end
  end
  for _, intent in ipairs(unit.sync) do communicates(intent) end
end

-- Returns the plan's record of a strategy, for the given classes of units and the plan's mesh.
function make.result(strategy, classes, mesh)
  local units = {}
  local run = host.word(record_unit, strategy.site)
  for i, class in ipairs(classes) do
    units[i] = run(strategy, class)
    require_axes(strategy, units[i], mesh)
  end
  require_effect(strategy, units, classes, mesh)
  local shared = {}
  for _, axis in ipairs(mesh.axes) do
    if strategy.shared[axis[1]] then shared[#shared + 1] = axis[1] end
  end
  return { name = strategy.name, axes = strategy.axes, shared = shared, splits = strategy.splits,
           differs = strategy.differs, share = strategy.splits == "tokens" and strategy.options.share or "",
           site = strategy.site, units = units }
end

-- Returns the axes that a strategy's options name. An option `over` that is no list of names is one like any other.
local function axes_of(name, options, default, site)
  local over = options.over
  if type(over) == "table" and type(over[1]) == "string" and over[1] ~= "" then
    if #over < 2 then
      host.fail(("the strategy %s: 'over' takes two axes, such as { \"replicate\", \"shard\" }; for one, 'axis'")
        :format(name), host.site_of_word(site, "over"))
    end
    for i, axis in ipairs(over) do
      for j = 1, i - 1 do
        if over[j] == axis then
          host.fail(("the strategy %s: 'over' has the axis '%s' twice"):format(name, axis),
            host.site_of_word(site, "over"))
        end
      end
    end
    return over
  end
  if type(default) == "table" then default = default[1] end
  if options.axis == "" and default ~= "" then
    host.fail(("the strategy %s: 'axis' must be the name of a mesh axis, not ''"):format(name),
      host.site_of_word(site, "axis"))
  end
  return options.axis and options.axis ~= "" and { options.axis } or {}
end

local define

local traits_entries = {
  { name = "splits", kind = "text", default = "batch", choices = { "batch", "tokens", "nothing" },
    help = "what the axis divides" },
  { name = "differs", kind = "text", default = "",
    help = 'why it trains something else than one rank would: "weights drift between averages"; empty: it does not' },
  { name = "shares", kind = "boolean", default = false,
    help = "whether its axis may be another strategy's, which then divides the data or the weights" },
  { name = "needs", kind = "text", default = "",
    help = "which layers a model must have; empty: it also works without layers of its own" },
}

define = host.word(schema.word("prun.strategy", {
  { name = "name", kind = "name", help = "of the strategy, in messages" },
  { name = "defaults", kind = "table", help = 'its options, such as { axis = "dp" }' },
  { name = "body", kind = "fn", help = "function(unit, opt)" },
  options = traits_entries,
}, function(name, defaults, body, traits)
  local entries = schema.from_defaults("the strategy " .. name, defaults, host.site())
  schema.register("prun." .. name, entries)
  local over = false
  for _, entry in ipairs(entries) do over = over or entry.name == "over" and entry.kind == "texts" end
  if not over and type(defaults.axis) ~= "string" and type(defaults.axis) ~= "table" then
    host.fail(("the strategy %s needs an option `axis`, such as { axis = \"dp\" }"):format(name))
  end
  local what = "the strategy " .. name
  local self = schema.constructor(what, entries, function(_, given)
    local site = host.site("user")
    local options = schema.check(what, entries, given, site)
    return { kind_of = "strategy", name = name, site = site, body = body, splits = traits.splits,
             differs = traits.differs, needs = traits.needs, options = options, shares = traits.shares, shared = {},
             axes = axes_of(name, options, defaults.axis, site) }
  end)
  -- Returns the same strategy under another name.
  function self.renamed(_, other) return define(other, defaults, body, traits) end
  return self
end))

return setmetatable(make, {
  __call = function(_, ...) return define(...) end,
  __index = function(_, field)
    host.fail(("prun.strategy has no field '%s'%s"):format(tostring(field),
      require("prun.elsewhere").field(field, {})))
  end,
})
