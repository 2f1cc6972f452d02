-- The model graph being recorded: values, nodes, units, calls. Ids count from 0, as the plan's readers expect.
--
-- A call is one use of a unit in the forward pass. Ops outside any unit belong to the last call: the loss, mostly. A
-- program (program.lua) is recorded here too: it is a graph without units.

local tensor = require "prun.tensor"

local graph = { current = nil }

-- Records what fn(...) does into a new graph; returns the graph and fn's result. `has_units` is false for programs.
function graph.record(dtype, has_units, fn, ...)
  local outer = graph.current
  graph.current = { values = {}, nodes = {}, units = {}, calls = {}, unit_of = {}, counts = {}, dtype = dtype,
                    has_units = has_units }
  local result = fn(...)
  local recorded = graph.current
  graph.current = outer
  return recorded, result
end

function graph.here(what)
  if not graph.current then host.fail(what .. " is used inside a model, where it records an op") end
  return graph.current
end

local function here_with_units(what)
  local g = graph.here(what)
  if not g.has_units then
    host.fail(("%s belongs to a model; a program makes tensors with prun.full and the like"):format(what))
  end
  return g
end

-- Runs fn as one more call of `unit`.
local function call_unit(g, unit, fn)
  if g.open then host.fail(("unit '%s' inside unit '%s': units do not nest"):format(unit.name, g.open.name)) end
  g.calls[#g.calls + 1] = { unit = unit.id }
  g.open = unit
  local results = table.pack(fn())
  g.open = nil
  return table.unpack(results, 1, results.n)
end

-- A new unit. Its class is its name without the number at the end: hooks run once for each class.
function graph.unit(name, fn)
  local g = here_with_units("nn.unit")
  if type(name) ~= "string" or type(fn) ~= "function" then
    host.fail('nn.unit takes a name and a function: nn.unit("block" .. i, function() ... end)')
  end
  if g.unit_of[name] then
    host.fail(("there is a unit '%s' already (nn.again runs it once more, with the same parameters)"):format(name))
  end
  local unit = { id = #g.units, name = name, class = name:match("^(.-)%d*$"), parameters = {}, parameter_of = {},
                 counts = {} }
  if unit.class == "" then unit.class = name end
  g.units[#g.units + 1], g.unit_of[name] = unit, unit
  return call_unit(g, unit, fn)
end

-- One more call of a unit, with the same parameters: tied weights.
function graph.again(name, fn)
  local g = here_with_units("nn.again")
  local unit = g.unit_of[name]
  if not unit then
    local names = {}
    for i, known in ipairs(g.units) do names[i] = known.name end
    host.fail(("no unit '%s' so far%s"):format(tostring(name), host.did_you_mean(tostring(name), names)))
  end
  return call_unit(g, unit, fn)
end

-- The unit that an op or parameter belongs to now.
local function owner(g)
  if g.open then return g.open end
  local last = g.calls[#g.calls]
  if last then return g.units[last.unit + 1] end
  graph.unit("model", function() end)
  return g.units[1]
end

local function add_value(g, value)
  value.id = #g.values
  g.values[#g.values + 1] = value
  return tensor.new(value)
end

-- "block3.add2": the unit, the name, and which of that name it is.
local function label(g, name)
  local unit = g.has_units and owner(g)
  local counts = unit and unit.counts or g.counts
  counts[name] = (counts[name] or 0) + 1
  return (unit and unit.name .. "." or "") .. name .. (counts[name] > 1 and tostring(counts[name]) or "")
end

local function ids(tensors)
  local result = {}
  for i, one in ipairs(tensors) do result[i] = one.id end
  return result
end

-- Adds an op whose outputs are known. Programs use this for what is not an op of models; `axis` is for communication.
function graph.add(kind, inputs, outputs, attrs, axis)
  local g = graph.here("prun." .. kind)
  g.nodes[#g.nodes + 1] = { op = kind, inputs = ids(inputs), outputs = ids(outputs), attrs = host.map(attrs or {}),
                            call = #g.calls - 1, axis = axis or "", site = host.site() }
end

-- A new tensor, named after what makes it.
function graph.tensor(name, dtype, shape)
  local g = graph.here("a tensor")
  return add_value(g, { name = label(g, name), dtype = dtype, shape = shape, kind = "activation", unit = -1,
                        site = host.site() })
end

function graph.input(name, dtype, shape)
  local g = graph.here("an input")
  return add_value(g, { name = name, dtype = dtype, shape = shape, kind = "input", unit = -1, site = host.site() })
end

local inits = { zeros = 0, ones = 0, constant = 1, normal = 1, uniform = 1 }

-- A parameter of the current unit; the second request for a name gives the same one. `blocks`: the sizes of the pieces
-- that its last dim consists of, such as q, k and v.
function graph.parameter(name, shape, init, blocks)
  local g = here_with_units("nn.parameter")
  local unit = owner(g)
  if unit.parameter_of[name] then return unit.parameter_of[name] end
  local kind, scale = init[1] or "zeros", init[2] or 0
  if not inits[kind] then
    host.fail(("no initial values '%s'%s"):format(tostring(kind),
      host.did_you_mean(tostring(kind), { "zeros", "ones", "constant", "normal", "uniform" })))
  end
  for _, size in ipairs(shape) do
    if not math.tointeger(size) or size < 1 then
      host.fail(("parameter '%s' has the dims [%s]: each must be a whole number of at least 1"):format(
        name, table.concat(shape, ", ")))
    end
  end
  local parameter = add_value(g, { name = unit.name .. "." .. name, dtype = g.dtype, shape = shape, kind = "parameter",
                                   unit = unit.id, init = { kind = kind, scale = scale + 0.0 }, blocks = blocks,
                                   site = host.site() })
  unit.parameters[#unit.parameters + 1] = parameter.id
  unit.parameter_of[name] = parameter
  return parameter
end

local function types(inputs)
  local result = {}
  for i, input in ipairs(inputs) do result[i] = { dtype = input.dtype, shape = input.shape } end
  return result
end

-- Records an op and returns its outputs. `name` labels them; `more` names those after the first.
function graph.op(kind, inputs, attrs, name, more)
  local g = graph.here("nn." .. kind)
  for i, input in ipairs(inputs) do
    if not tensor.is(input) then
      host.fail(("%s: input %d is %s, not a tensor"):format(
        kind, i, type(input) == "table" and "a table" or tostring(input)))
    end
  end
  local outputs, first = {}, label(g, name or kind)
  for i, type in ipairs(host.infer(kind, types(inputs), host.map(attrs or {}))) do
    local suffix = i == 1 and "" or "." .. (more and more[i - 1] or tostring(i))
    outputs[i] = add_value(g, { name = first .. suffix, dtype = type.dtype, shape = type.shape, kind = "activation",
                                unit = -1, site = host.site() })
  end
  graph.add(kind, inputs, outputs, attrs)
  return table.unpack(outputs)
end

-- The part of the plan that graph becomes.
function graph.result(g)
  local units = {}
  for i, unit in ipairs(g.units) do
    units[i] = { name = unit.name, class = unit.class, parameters = unit.parameters }
  end
  return { values = g.values, nodes = g.nodes, units = units, calls = g.calls }
end

return graph
