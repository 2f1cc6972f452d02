-- prun.strategy(name, defaults, body): body(unit, opt) says, for one class of units, where the parameters lie and what
-- moves before and after each phase. Hooks record intents here and run once a class; they see no value and no schedule.
--
-- Handles have numbers of their own in each strategy, so that two strategies on one unit cannot meet by accident.

local record = require "prun.record"
local schema = require "prun.schema"

local intent_options = {
  all_gather = {
    { name = "axis", kind = "text", help = "mesh axis to gather over" },
    { name = "stream", kind = "text", default = "", help = "stream of its own; empty: the compute stream" },
    { name = "prefetch", kind = "integer", default = 0, least = 0, help = "how many gathers may run ahead" },
  },
  reduce_scatter = {
    { name = "axis", kind = "text", help = "mesh axis to reduce over" },
    { name = "op", kind = "text", default = "avg", choices = { "avg", "sum" }, help = "how to reduce" },
    { name = "into", kind = "any", help = "where the rank's piece goes: unit.grad_shard" },
    { name = "stream", kind = "text", default = "", help = "stream of its own; empty: the compute stream" },
    { name = "inflight", kind = "integer", default = 1, least = 1,
      help = "how many may be unfinished behind backward" },
    { name = "bucket", kind = "text", default = "unit", choices = { "unit" }, help = "one reduction a unit" },
  },
  all_reduce = {
    { name = "axis", kind = "text", help = "mesh axis to reduce over" },
    { name = "op", kind = "text", default = "avg", choices = { "avg", "sum" }, help = "how to reduce" },
    { name = "stream", kind = "text", default = "", help = "stream of its own; empty: the compute stream" },
    { name = "bucket", kind = "bytes", optional = true,
      help = "gradients of several units in one reduction of this size" },
    { name = "first", kind = "bytes", optional = true, help = "size of the first bucket, to start early" },
  },
  free = { { name = "keep", kind = "any", optional = true, help = "unit.last: not after the last unit of forward" } },
}

-- What a hook can name. A target is one of the unit's vectors, a handle is what an all_gather made.
local function target(name) return { kind_of = "target", target = name } end

local function expect(value, kind, word, example)
  if type(value) ~= "table" or value.kind_of ~= kind then
    host.fail(("prun.%s needs %s"):format(word, example))
  end
  return value
end

local function new_recorder()
  local self = { intents = nil, next_handle = 0, words = {} }
  local words = self.words

  local function options(word, given)
    return schema.check("prun." .. word, intent_options[word], given, host.site("user"))
  end

  local function add(intent)
    intent.site = host.site()
    self.intents[#self.intents + 1] = intent
    return intent
  end

  function words.all_gather(what, given)
    local opt = options("all_gather", given)
    local name = expect(what, "target", "all_gather", "what to gather first: unit.params").target
    local handle = self.next_handle
    self.next_handle = handle + 1
    add { kind = "all_gather", target = name, handle = handle, axis = opt.axis, stream = opt.stream,
          prefetch = opt.prefetch }
    return { kind_of = "handle", handle = handle }
  end

  function words.free(handle, given)
    local opt = options("free", given)
    add { kind = "free", handle = expect(handle, "handle", "free", "what an all_gather returned").handle,
          keep_last = opt.keep ~= nil }
  end

  -- Gathers again unless the handle is live still: one op, since a hook cannot know.
  function words.ensure(handle, gather)
    local number = expect(handle, "handle", "ensure", "what an all_gather returned").handle
    if type(gather) ~= "function" then
      host.fail("prun.ensure needs the function that gathers, as its second argument")
    end
    local outer, next_handle = self.intents, self.next_handle
    self.intents, self.next_handle = {}, number
    gather()
    local inner = self.intents
    self.intents, self.next_handle = outer, next_handle
    if #inner ~= 1 or inner[1].kind ~= "all_gather" then
      host.fail("the function given to prun.ensure must do one prun.all_gather and nothing else")
    end
    local made = inner[1]
    add { kind = "ensure", target = made.target, handle = number, axis = made.axis, stream = made.stream,
          prefetch = made.prefetch }
  end

  function words.reduce_scatter(what, given)
    local opt = options("reduce_scatter", given)
    local name = expect(what, "target", "reduce_scatter", "what to reduce first: unit.grads").target
    expect(opt.into, "target", "reduce_scatter", "into = unit.grad_shard")
    add { kind = "reduce_scatter", target = name, axis = opt.axis, op = opt.op, stream = opt.stream,
          inflight = opt.inflight, bucket = 0 }
  end

  function words.all_reduce(what, given)
    local opt = options("all_reduce", given)
    local name = expect(what, "target", "all_reduce", "what to reduce first: unit.grads").target
    add { kind = "all_reduce", target = name, axis = opt.axis, op = opt.op, stream = opt.stream,
          bucket = opt.bucket or 0, first = opt.first or 0 }
  end

  -- prun.print("gradient before averaging:", unit.grads)
  function words.print(...)
    local texts, what = {}, nil
    for _, part in ipairs { ... } do
      if type(part) == "table" and part.kind_of == "target" then
        if what then host.fail("prun.print in a hook prints one vector at a time") end
        what = part.target
      else
        texts[#texts + 1] = tostring(part)
      end
    end
    add { kind = "print", target = what or "", text = table.concat(texts, " ") }
  end

  return self
end

-- unit.params:flat():place { dp = "S(0)" }
local function new_params(result)
  local params = target "params"
  function params.flat(self)
    return { place = function(_, placements)
      if type(placements) ~= "table" then host.fail('place takes a table, such as { dp = "S(0)" }') end
      for axis, placement in pairs(placements) do
        if placement ~= "S(0)" then
          host.fail(("placement '%s' of a flat vector on axis '%s': only S(0), sharded, is known"):format(
            tostring(placement), tostring(axis)))
        end
        if result.sharded then host.fail("the parameters are placed on one axis already") end
        result.sharded, result.shard_axis, result.shard_site = true, axis, host.site()
      end
      return self
    end }
  end
  return params
end

local phases = { "forward", "backward" }

-- Runs the body for one class; returns what the plan holds of it.
local function record_unit(strategy, class)
  local result = { class = class, sharded = false, shard_axis = "", site = strategy.site, hooks = {} }
  local hooks = {}
  local function adder(when)
    return function(_, phase, fn)
      if phase ~= "forward" and phase ~= "backward" then
        host.fail(("no phase '%s'%s"):format(tostring(phase), host.did_you_mean(tostring(phase), phases)))
      end
      if type(fn) ~= "function" then host.fail(("unit:%s takes a phase and a function"):format(when)) end
      hooks[#hooks + 1] = { when = when, phase = phase, fn = fn }
    end
  end
  local unit = { kind_of = "unit", name = class, params = new_params(result), grads = target "grads",
                 grad_shard = target "grad_shard", last = { kind_of = "last" },
                 before = adder "before", after = adder "after" }
  setmetatable(unit, { __index = function(_, word)
    host.fail(("a unit has no '%s'%s"):format(tostring(word), host.did_you_mean(tostring(word),
      { "params", "grads", "grad_shard", "last", "before", "after", "name" })))
  end })
  strategy.body(unit, strategy.options)
  local recorder = new_recorder()
  for _, phase in ipairs(phases) do
    for _, when in ipairs { "before", "after" } do
      for _, hook in ipairs(hooks) do
        if hook.phase == phase and hook.when == when then
          recorder.intents = {}
          record.within("a strategy's hook", recorder.words, hook.fn)
          result.hooks[#result.hooks + 1] = { when = when, phase = phase, intents = recorder.intents }
        end
      end
    end
  end
  if result.shard_site then result.site, result.shard_site = result.shard_site, nil end
  return result
end

local make = {}

-- What the plan holds of a strategy, for the given classes of units.
function make.result(strategy, classes)
  local units = {}
  local run = host.word(record_unit, strategy.site)
  for i, class in ipairs(classes) do units[i] = run(strategy, class) end
  return { name = strategy.name, axis = strategy.options.axis, site = strategy.site, units = units }
end

return setmetatable(make, {
  __call = host.word(function(_, name, defaults, body)
    if type(name) ~= "string" or type(defaults) ~= "table" or type(body) ~= "function" then
      host.fail('prun.strategy takes a name, default options and a function: prun.strategy("mine", { axis = "dp" }, ' ..
        "function(unit, opt) ... end)")
    end
    local entries = schema.from_defaults("the strategy " .. name, defaults, host.site())
    schema.register("prun." .. name, entries)
    if type(defaults.axis) ~= "string" and type(defaults.axis) ~= "table" then
      host.fail(("the strategy %s needs an option `axis`, such as { axis = \"dp\" }"):format(name))
    end
    return setmetatable({ entries = entries }, {
      __call = host.word(function(_, given)
        local site = host.site("user")
        return { kind_of = "strategy", name = name, site = site, body = body,
                 options = schema.check("the strategy " .. name, entries, given, site) }
      end),
    })
  end),
})
