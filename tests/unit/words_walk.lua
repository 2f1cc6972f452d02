-- Passes values of each wrong type and range to every argument and option of every function of the DSL: each must
-- be rejected at the plan's line, with the names of the function and the option. The rules for wrong values are
-- written here independently of the schema. script_test runs this file as a plan and reads the verdict from its
-- error.
local prun = require "prun"
local nn = prun.nn
local collectives = require "prun.collectives"
local graph = require "prun.graph"
local intents = require "prun.intents"
local namespace = require "prun.namespace"
local record = require "prun.record"
local schema = require "prun.schema"
local strategy = require "prun.strategy"

for _ = 1, 2 do
  for _, family in pairs(namespace.known) do
    for _, name in ipairs(family.names) do local _ = family.words[name] end
  end
end

local mesh = prun.mesh { dp = prun.world }
local tensor, target, handle, last  -- set where one exists

local pool = {
  { "fraction", 0.5 }, { "whole", 3 }, { "negative", -3 }, { "nan", 0 / 0 }, { "infinite", 1 / 0 }, { "huge", 2 ^ 63 },
  { "text", "x,y" }, { "boolean", true }, { "function", function() end }, { "table", {} }, { "tables", { {} } },
  { "tensor", nil },
}

-- Values of the pool that each kind accepts, or may accept if the rest of the call decides.
local accepts = {
  integer = "whole", number = "whole fraction huge", text = "text", name = "", axis = "", stream = "",
  boolean = "boolean", switch = "boolean", bytes = "whole", numbers = "table", integers = "table", texts = "text table",
  dims = "whole table",
  init = "", tensor = "tensor", tensors = "", count = "whole tensor",
  batches = "whole", fn = "function", table = "table tables",
  loads = "table tables", paths = "text",
  strategies = "table tables",
  operand = "whole fraction huge tensor",
  mesh = "", data = "", eval = "", checkpoint = "", weights = "", optimizer = "", lora = "",
  rate = "whole fraction huge function", schedule = "text", model = "function",
  target = "", gathered = "", handle = "", last = "",
}

local function is_accepted(entry, label)
  if label == "negative" then return entry.signed and accepts[entry.kind]:find "whole" ~= nil end
  if label == "nan" then return entry.nan end
  if label == "infinite" then return entry.infinite end
  if label == "text" and entry.choices then return false end
  return accepts[entry.kind]:find("%f[%w]" .. label .. "%f[%W]") ~= nil
end

-- A valid value of each kind.
local right = {
  integer = 2, number = 0.25, text = "f32", name = "a", axis = "dp", stream = "", boolean = true, switch = true,
  bytes = "1 KiB",
  numbers = { 0.5, 0.5 }, integers = { 1 }, texts = { "a" }, dims = { 2 }, init = { "ones" }, count = 2, batches = "all",
  fn = function() end, table = {}, loads = {}, paths = "x.npy", strategies = {}, mesh = mesh, rate = 0.1, schedule = "gpipe",
}
local function right_value(entry)
  if entry.kind == "tensor" or entry.kind == "operand" then return tensor end
  if entry.kind == "tensors" then return { tensor } end
  if entry.kind == "target" or entry.kind == "gathered" then return target end
  if entry.kind == "handle" then return handle end
  if entry.kind == "last" then return last end
  if entry.kind == "data" then return prun.data.index { batch = 1 } end
  if entry.kind == "optimizer" then return prun.sgd {} end
  if entry.kind == "model" then return function(batch) return prun.losses.mean(nn.linear("l", batch.x, 2)) end end
  if entry.choices then return entry.choices[1] end
  return right[entry.kind]
end

local escapes, tried, words_tried = {}, 0, 0

-- Calls the function with one wrong value; `place`: index of the argument, nil for an option.
local function try(word, call, arguments, entry, label, value, place)
  local given, options = { n = #arguments }, {}
  for i, one in ipairs(arguments) do given[i] = right_value(one) end
  for _, one in ipairs(arguments.options or {}) do
    if one.default == nil and not one.optional then options[one.name] = right_value(one) end
  end
  if place then given[place] = value else options[entry.name] = value end
  if arguments.options then given[#arguments + 1], given.n = options, #arguments + 1 end
  local ok, text = pcall(call, table.unpack(given, 1, given.n))
  tried = tried + 1
  local where = ("%s: %s = %s"):format(word, entry.name, label)
  if ok then
    escapes[#escapes + 1] = where .. " is accepted"
  elseif not text:find("^[^:]*words_walk%.lua:%d+: ") or text:find "attempt to" then
    escapes[#escapes + 1] = where .. " has no line of the plan: " .. text
  elseif not text:find("'" .. entry.name .. "'", 1, true) or not text:find(word:match "[%w_]+$", 1, true) then
    escapes[#escapes + 1] = where .. " names neither word nor option: " .. text
  end
end

local function walk(word, call, arguments)
  words_tried = words_tried + 1
  local function entry_of(entry, place)
    local bounded = entry.least or entry.above or entry.signed
    local numeric = entry.kind == "integer" or entry.kind == "number" or entry.kind == "bytes" or entry.kind == "rate"
    if numeric and not bounded then escapes[#escapes + 1] = word .. ": " .. entry.name .. " has no lower bound" end
    for _, one in ipairs(pool) do
      local value = one[1] == "tensor" and tensor or one[2]
      if value ~= nil and not is_accepted(entry, one[1]) then
        try(word, call, arguments, entry, one[1], value, place)
      end
    end
  end
  for i, entry in ipairs(arguments) do entry_of(entry, i) end
  for _, entry in ipairs(arguments.options or {}) do entry_of(entry) end
end

local function find(word)
  local value = prun
  for name in word:gmatch "[^.]+" do
    if name ~= "prun" then value = value[name] end
  end
  return value
end

-- Functions of a model, a program, a hook and a schedule.
graph.record("f32", true, function()
  tensor = graph.input("x", "f32", { 2, 2, 2 })
  for word, arguments in pairs(schema.words) do
    local family = word:match "^(prun%.%w+)%."
    if family == "prun.nn" or family == "prun.losses" or family == "prun.metrics" then
      walk(word, find(word), arguments)
    end
  end
  walk("prun.nn.attention", nn.attention, { options = schema.registered["prun.nn.attention.separate"] })
end)

local program, rank_words = nil, collectives.words(0, mesh)
graph.record("f32", false, function()
  record.within("a program", rank_words, function()
    tensor = prun.full({ 2 }, 1)
    for word, arguments in pairs(schema.words) do
      program = word:match "^program (.*)$"
      if program then walk(word, find(program), arguments) end
    end
  end)
end)

tensor = nil
local recorder
strategy.result({ name = "walk", axes = {}, shared = {}, splits = "batch", site = mesh.site, options = {},
                  body = function(unit)
  recorder = intents.recorder(unit.grads.unit)
  recorder.intents = {}
  target, last = unit.grads, unit.last
  record.within("a hook", recorder.words, function()
    handle = prun.all_gather(unit.params, { axis = "dp" })
    for word, arguments in pairs(schema.words) do
      local hook = word:match "^hook (.*)$"
      if hook then walk(word, find(hook), arguments) end
    end
  end)
  local objects = {
    ["unit"] = unit, ["unit.params"] = unit.params, ["unit.grads"] = unit.grads, ["unit.optimizer"] = unit.optimizer,
    ["unit.activations"] = unit.activations, ["unit.params:flat()"] = unit.params:flat(),
    ["layer"] = unit:find("up")[1],
  }
  for word, arguments in pairs(schema.words) do
    local object, method = word:match "^%w+ (.*):(%w+)$"
    if not object then object, method = word:match "^[%w_]+ (.*):(%w+)$" end
    if method then
      local self = objects[object]
      if not self then error("words_walk.lua does not know " .. object, 0) end
      walk(word, function(...) return self[method](self, ...) end, arguments)
    end
  end
  unit:recompute()
  unit:after("forward", function() end)
end }, { { name = "a", layers = { up = true } } }, mesh)

pcall(prun.schedule("walk", function()
  for word, arguments in pairs(schema.words) do
    local turn = word:match "^schedule (.*)$"
    if turn then walk(word, find(turn), arguments) end
  end
end).record, 1, 4, 1)

-- Functions with a table argument, and the remaining ones.
local tables = { ["prun.plan.report"] = true, ["prun.groups.group"] = true,  -- inside others
                 ["prun.nn.attention.separate"] = true }
for word, entries in pairs(schema.registered) do
  if not schema.words[word] and not tables[word] and not word:find "%.walk$" then
    walk(word, find(word), { options = entries })
  end
end
for _, word in ipairs { "prun.mesh", "prun.model", "prun.strategy", "prun.schedule", "prun.program" } do
  walk(word, find(word), schema.words[word])
end
walk("report", function(given)
  return prun.plan { mesh = mesh, model = right_value { kind = "model" }, data = prun.data.index { batch = prun.world },
                     strategy = prun.ddp {}, optimizer = prun.sgd {}, report = given }
end, { options = schema.registered["prun.plan.report"] })

walk("group", function(given) return prun.groups { given, prun.sgd {} } end,
  { options = schema.registered["prun.groups.group"] })

if tried < 2500 then escapes[#escapes + 1] = ("only %d values were tried"):format(tried) end
error(#escapes > 0 and table.concat(escapes, "\n") or "all refused", 0)
