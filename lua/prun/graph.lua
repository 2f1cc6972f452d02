-- The model graph being recorded: values, nodes, units, calls. Ids count from 0, as the plan's readers expect.
--
-- A call is one use of a unit in the forward pass. Ops outside any unit, usually the loss, belong to the last call. A
-- program (program.lua) is recorded here too: it is a graph without units.

local alike = require "prun.alike"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

-- Limits: 2^46 elements per tensor and 2^53 bytes per recording, so that sums of bytes are exact.
local graph = { current = nil, most_elements = 70368744177664, most_bytes = schema.most_exact }

-- Records fn(...) into a new graph; returns the graph and fn's results. `has_units`: false for programs. `values` and
-- `nodes` omit calls that repeat others (alike.lua); `count` includes their values.
function graph.record(dtype, has_units, fn, ...)
  local outer = graph.current
  graph.current = { values = {}, nodes = {}, units = {}, calls = {}, unit_of = {}, counts = {}, rounds = {},
                    dtype = dtype, has_units = has_units, bytes = 0.0, site_of = {}, count = 0, sizes = {},
                    inputs_of = {},
                    more_of = {}, patterns = {}, also = {}, may_ignore = {}, shares_of = {}, outputs = {}, updated = {},
                    sample_ranks = 1, microbatches = 1 }
  local results = table.pack(fn(...))
  local recorded = graph.current
  graph.current = outer
  return recorded, table.unpack(results, 1, results.n)
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

-- Runs fn as a call of `unit`; `new`: its first call.
local function call_unit(g, unit, fn, new)
  if g.open then host.fail(("unit '%s' inside unit '%s': units do not nest"):format(unit.name, g.open.name)) end
  local call = { id = #g.calls, unit = unit.id }
  g.calls[#g.calls + 1] = call
  g.open, unit.made_now = unit, {}
  if new then alike.begin(g, unit, call) end
  local results = table.pack(fn())
  g.open = nil
  if new then alike.finish(g, unit, call) end
  return table.unpack(results, 1, results.n)
end

local fn = { name = "fn", kind = "fn", help = "a function, which records the unit's ops" }

-- Adds a unit. Its class is its name without the trailing number; hooks run once per class.
graph.unit = schema.word("prun.nn.unit", {
  { name = "name", kind = "name", help = 'of the unit, such as "block" .. i' }, fn,
}, function(name, body)
  local g = here_with_units("nn.unit")
  if g.unit_of[name] then
    host.fail(("there is a unit '%s' already (nn.again runs it once more, with the same parameters)"):format(name))
  end
  local unit = { id = #g.units, name = name, class = name:match("^(.-)%d*$"), parameters = {}, parameter_of = {},
                 counts = {}, made_now = {} }
  if unit.class == "" then unit.class = name end
  g.units[#g.units + 1], g.unit_of[name] = unit, unit
  return call_unit(g, unit, body, true)
end)

-- Calls a unit again with the same parameters (tied weights).
graph.again = schema.word("prun.nn.again", {
  { name = "name", kind = "name", help = "of a unit that was called before" }, fn,
}, function(name, body)
  local g = here_with_units("nn.again")
  local unit = g.unit_of[name]
  if not unit then
    local names = {}
    for i, known in ipairs(g.units) do names[i] = known.name end
    host.fail(("no unit '%s' so far%s"):format(tostring(name), host.did_you_mean(tostring(name), names)))
  end
  return call_unit(g, unit, body)
end)

-- Returns the unit of ops and parameters that are recorded now.
local function owner(g)
  if g.open then return g.open end
  local last = g.calls[#g.calls]
  if last then return g.units[last.unit + 1] end
  graph.unit("model", function() end)
  return g.units[1]
end

local bytes_of = { f64 = 8, i64 = 8, f32 = 4, i32 = 4, bf16 = 2, f16 = 2 }

-- Returns the bytes of a value. Sizes are multiplied as floats because integers would wrap around.
local function checked_size(g, value)
  local elements = 1.0
  for _, size in ipairs(value.shape) do elements = elements * size end
  local bytes = elements * (bytes_of[value.dtype] or 1)
  g.bytes = g.bytes + bytes
  if elements <= graph.most_elements and g.bytes <= graph.most_bytes then return bytes end
  host.fail(("%s '%s' is [%s], %s"):format(value.kind == "parameter" and "the parameter" or "the tensor", value.name,
    table.concat(value.shape, ", "), elements > graph.most_elements and
    ("%.3g elements; a tensor has at most %d"):format(elements, graph.most_elements) or
    ("and with it a rank has %.3g bytes; at most %d can be planned"):format(g.bytes, graph.most_bytes)))
end

local function add_value(g, value)
  if g.follows then alike.leave(g) end
  g.sizes[g.count] = checked_size(g, value)
  value.id, g.count = g.count, g.count + 1
  g.values[#g.values + 1] = value
  return tensor.new(value, g)
end

-- Returns the size of the last dim.
function graph.last_dim(x)
  local shape = tensor.record(x).shape
  return #shape > 0 and shape[#shape] or 1
end

-- Returns "block3." and "add2": the unit's prefix, and the name with a counter from the second use on.
local function label(g, name)
  local unit = g.has_units and owner(g)
  local counts = unit and unit.counts or g.counts
  local count = (counts[name] or 0) + 1
  counts[name] = count
  return unit and unit.name .. "." or "", count > 1 and name .. count or name
end

-- Returns ids; rejects tensors of another recording, whose ids would denote other tensors here.
local function ids(g, kind, tensors)
  local result = {}
  for i, one in ipairs(tensors) do
    local record, recording = tensor.record(one)
    if recording ~= g then
      local where = g.has_units and "in another recording of a model" or
        "in the program of another rank, which is recorded by itself"
      host.fail(("%s: '%s' was made %s, at %s:%d: it means nothing here"):format(
        kind, one.name, where, one.site[1], one.site[2]))
    end
    result[i] = record.id
  end
  return result
end

local function add_node(g, kind, inputs, outputs, attrs, axis, site)
  g.nodes[#g.nodes + 1] = { op = kind, inputs = ids(g, kind, inputs), outputs = ids(g, kind, outputs),
                            attrs = host.map(attrs), call = #g.calls - 1, axis = axis, site = site }
end

-- Adds an op whose outputs exist, such as a program's communication; `axis`: the mesh axis of communication.
function graph.add(kind, inputs, outputs, attrs, axis)
  local g = graph.here("prun." .. kind)
  if g.follows then alike.leave(g) end
  add_node(g, kind, inputs, outputs, attrs or {}, axis or "", host.site())
end

-- Returns a new tensor, named after the op that makes it.
function graph.tensor(name, dtype, shape)
  local g = graph.here("a tensor")
  local unit, tail = label(g, name)
  return add_value(g, { name = unit .. tail, dtype = dtype, shape = shape, kind = "activation", unit = -1,
                        site = host.site() })
end

-- `shares`: what a tensor of shares is computed from (shares.lua).
function graph.input(name, dtype, shape, shares)
  local g = graph.here("an input")
  return add_value(g, { name = name, dtype = dtype, shape = shape, kind = "input", unit = -1, shares = shares,
                        site = host.site() })
end

-- Returns the unit's existing parameter of this name.
local function known_parameter(unit, name, parameter, shape, shared)
  local first = ("%s:%d"):format(parameter.site[1], parameter.site[2])
  if not shared and unit.made_now[name] then
    host.fail(("the unit '%s' has a layer with the parameter '%s' already (%s): two layers of a name would share " ..
      "it; to share on purpose, make it with nn.parameter and give it to both as `weight`"):format(
      unit.name, name, first))
  end
  local dims, wanted = table.concat(parameter.shape, ", "), table.concat(shape, ", ")
  if dims ~= wanted then
    host.fail(("the parameter '%s' is [%s] (%s) and cannot be [%s], too: in a unit a name stands for one parameter")
      :format(parameter.name, dims, first, wanted))
  end
  unit.made_now[name] = true
  return parameter
end

-- Returns a parameter of the current unit. Requesting a name again returns the same parameter, within one call of the
-- unit only if `shared`. `init`: { "normal", 0.02 } or as the schema has it. `blocks`: sizes of the pieces of its last
-- dim, such as q, k and v. `buffer`: a buffer instead (buffers.lua).
function graph.parameter(name, shape, init, blocks, shared, buffer)
  local g = here_with_units("nn.parameter")
  local unit = owner(g)
  local known = unit.parameter_of[name]
  local was = known and tensor.record(known)
  if was and (was.buffer or false) ~= (buffer or false) then
    host.fail(("'%s' of the unit '%s' is %s already (%s:%d)"):format(name, unit.name,
      was.buffer and "a buffer" or "a parameter", was.site[1], was.site[2]))
  end
  if known then return known_parameter(unit, name, known, shape, shared) end
  local whole = unit.name .. "." .. name
  local other = g.site_of[whole]
  if other then
    host.fail(("the parameter '%s' of the unit '%s' has the name of another unit's (%s:%d): checkpoints " ..
      "and messages know parameters by their names"):format(whole, unit.name, other[1], other[2]))
  end
  local dtype = buffer and g.dtype == "bf16" and "f32" or g.dtype  -- small changes of a buffer must not round away
  local value = { name = whole, dtype = dtype, shape = shape, kind = "parameter", unit = unit.id, buffer = buffer,
                  init = init.kind and init or schema.convert("init", init), blocks = blocks, site = host.site() }
  local parameter = g.follows and alike.parameter(g, value, name) or add_value(g, value)
  unit.parameters[#unit.parameters + 1], unit.like = parameter.id, nil
  unit.parameter_of[name], unit.made_now[name], g.site_of[whole] = parameter, true, tensor.record(parameter).site
  return parameter
end

-- Returns the name of the unit that is recorded now.
function graph.unit_name() return owner(graph.current).name end

-- Names a tensor of the model; returns it.
function graph.output(name, x)
  local g = here_with_units("prun.output")
  if g.outputs[name] then host.fail(("the model has an output '%s' already"):format(name)) end
  g.outputs[name] = tensor.record(x).id
  return x
end

-- Notes that the current unit's layer borrows another's weight, under the name of its own.
function graph.borrow(weight, name)
  local g = here_with_units("a tied weight")
  g.also[#g.also + 1] = { id = tensor.record(weight).id, name = owner(g).name .. "." .. name }
end

local function types(inputs)
  local result = {}
  for i, input in ipairs(inputs) do
    local record = tensor.record(input)
    result[i] = { dtype = record.dtype, shape = record.shape }
  end
  return result
end

-- Records an op and returns its outputs. `name` labels the first output, `more` names the others.
function graph.op(kind, inputs, attrs, name, more)
  local g = graph.current or graph.here("nn." .. kind)
  local unit, first = label(g, name or kind)
  local site = host.site()
  attrs = attrs or {}
  local outputs = g.follows and alike.op(g, kind, inputs, attrs, first, more, site)
  if outputs then return table.unpack(outputs) end
  outputs = {}
  for i, type in ipairs(host.infer(kind, types(inputs), host.map(attrs))) do
    local suffix = i == 1 and "" or "." .. (more and more[i - 1] or tostring(i))
    outputs[i] = add_value(g, { name = unit .. first .. suffix, dtype = type.dtype, shape = type.shape,
                                kind = "activation", unit = -1, site = site })
  end
  add_node(g, kind, inputs, outputs, attrs, "", site)
  g.inputs_of[#g.nodes], g.more_of[#g.nodes] = inputs, more
  return table.unpack(outputs)
end

-- The part of the plan that graph becomes.
function graph.result(g)
  local calls, units = alike.result(g), {}
  for i, unit in ipairs(g.units) do
    units[i] = { name = unit.name, class = unit.class, parameters = unit.parameters }
  end
  return { values = g.values, nodes = g.nodes, units = units, calls = calls }
end

return graph
