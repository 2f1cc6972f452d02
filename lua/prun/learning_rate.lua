-- A learning rate that changes from step to step, as a value of an optimizer's `lr`: a curve of pieces
-- (runtime/ir/learning_rate.h), points, or a function of the step, which is tabulated when the plan is read.

local schema = require "prun.schema"

local learning_rate = {}

-- Options that several curves share.
local shared = {
  lr = { name = "lr", kind = "number", least = 0, help = "the greatest rate, reached when the warm-up ends" },
  warmup = { name = "warmup", kind = "integer", default = 0, least = 0, most = schema.most_exact,
             help = "steps in which it rises from 0; the first step has 0" },
  zero_first = { name = "zero_first", kind = "boolean", default = true,
                 help = "false: the first step of the warm-up has lr / warmup, and the last one lr" },
  steps = { name = "steps", kind = "integer", optional = true, least = 1, most = schema.most_exact,
            help = "the step at which it has reached `least`; by default the plan's number of steps" },
  least = { name = "least", kind = "number", default = 0.0, least = 0, help = "the rate at the end and from there on" },
}

-- A curve under construction: `at`: the step that it has reached, `value`: the rate there.
local Path = {}
Path.__index = Path

local function add(path, shape, to, stop)
  if stop > path.at then
    path.pieces[#path.pieces + 1] = { shape = shape, ["end"] = stop, from = path.value, to = to }
    path.at = stop
  end
  path.value = to
  return path
end

-- Each adds a piece from the current value to `to`, which step `stop` has.
function Path:linear(to, stop) return add(self, "linear", to, stop) end
function Path:cosine(to, stop) return add(self, "cosine", to, stop) end
function Path:flat(stop) return add(self, "linear", self.value, stop) end
-- From here on the value falls with the inverse square root of the step.
function Path:inverse_root(stop)
  return add(self, "inverse_root", self.value * (math.max(self.at, 1) / stop) ^ 0.5, stop)
end
-- Continues with another value.
function Path:jump(value)
  self.value = value
  return self
end

local function new_path(value) return setmetatable({ at = 0, value = value, pieces = {} }, Path) end

local function warm_up(options)
  local steps, lr = options.warmup or 0, options.lr
  if steps == 0 then return new_path(lr) end
  if options.zero_first == false then return new_path(lr / steps):linear(lr, steps - 1):flat(steps) end
  return new_path(0.0):linear(lr, steps)
end

-- Texts of the options. They state the whole curve, so that a resumed run detects another one.
local text_of = {
  lr = function(value) return (", peak %g"):format(value) end,
  warmup = function(value) return (", warmup %d"):format(value) end,
  zero_first = function(value) return value and "" or ", the first step not 0" end,
  steps = function(value) return (", over %d steps"):format(value) end,
  least = function(value) return (", least %g"):format(value) end,
}

local function text(name, entries, options)
  local words = name
  for _, entry in ipairs(entries) do
    local value = options[entry.name]
    local say = text_of[entry.name] or function() return (", %s %s"):format(entry.name, value) end
    if value ~= nil then words = words .. say(value) end
  end
  return words
end

local function require_range(what, options, steps, site)
  if options.least and options.least > options.lr then
    host.fail(("%s: 'least' must be at most lr, which is %s, not %s"):format(what, options.lr, options.least),
      host.site_of_word(site, "least"))
  end
  local length = (options.warmup or 0) + (options.decay or 0)
  if steps and length > steps then
    local names = options.decay and "'warmup' and 'decay' together" or "'warmup'"
    host.fail(("%s: %s must be at most the %d step%s of the schedule, not %d"):format(what, names, steps,
      steps == 1 and "" or "s", length), host.site_of_word(site, "warmup"))
  end
end

-- Defines a function such as prun.cosine. `entries`: names of shared options, and own ones. `shape(path, options)` adds
-- the pieces after the warm-up; options.steps is then known.
function learning_rate.curve(name, entries, shape)
  local what = "prun." .. name
  for i, entry in ipairs(entries) do entries[i] = shared[entry] or entry end
  schema.register(what, entries)
  local has_steps = false
  for _, entry in ipairs(entries) do has_steps = has_steps or entry.name == "steps" end
  return schema.constructor(what, entries, function(_, given)
    local site = host.site("user")
    local options = schema.check(what, entries, given, site)
    require_range(what, options, options.steps, site)
    local function result(steps)
      local all = {}
      for key, value in pairs(options) do all[key] = value end
      all.steps = options.steps or has_steps and steps or nil
      require_range(what, all, all.steps, site)
      local path = warm_up(all)
      if shape then shape(path, all) end
      return { text = text(name, entries, all), pieces = path.pieces, last = path.value }
    end
    return { kind_of = "rate", result = result }
  end)
end

-- Returns the rate of { { step, rate }, ... }: linear between the points, constant before the first and after the last;
-- or nil and why the points are none.
function learning_rate.points(given)
  local words, path = "points", nil
  for _, point in ipairs(given) do
    local step, rate = math.tointeger(point[1]), point[2]
    if not step or type(rate) ~= "number" or #point ~= 2 or step < 0 or rate < 0 or rate - rate ~= 0 then
      return nil, "must have points { step, rate }, a whole number and a number from 0"
    end
    if path and step <= path.at then return nil, "must have points with rising steps" end
    path = path and path:linear(rate + 0.0, step) or new_path(rate + 0.0):flat(step)
    words = ("%s (%d, %g)"):format(words, step, rate)
  end
  return { kind_of = "rate", result = function()
    return { text = words, pieces = path.pieces, last = path.value }
  end }
end

-- Returns the rate of a function of the step, from 0.
function learning_rate.tabulated(fn)
  return { kind_of = "rate", result = function(steps, site)
    local values, hash = {}, 0
    for step = 0, steps - 1 do
      local rate = fn(step)
      if type(rate) ~= "number" or rate < 0 or rate - rate ~= 0 then
        host.fail(("the learning rate of step %d must be a number from 0, not %s"):format(step, schema.show(rate)),
          site)
      end
      values[step + 1] = rate + 0.0
      hash = hash * 1000003 + math.floor(math.min(rate, 1000.0) * 2.0 ^ 50)
    end
    return { text = ("a function, %d steps, %016x"):format(steps, hash), rates = values, last = values[steps] }
  end }
end

return learning_rate
