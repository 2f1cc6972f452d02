-- Compresses repeated calls: a model's second block usually records the same ops as the first. While a call records the
-- ops of an earlier call of its unit's class, from the same lines, no op infers types and no node is stored. The plan
-- stores for such a call its unit, the call that it repeats, its first value, and its inputs from outside.
--
-- The followed call is a guess: the one that came after the class's last call the previous time, or the class's first
-- call. A call that deviates is stored in full and can be followed by others.

local schema = require "prun.schema"
local tensor = require "prun.tensor"

local alike = {}

-- Whether two lists have the same elements.
local function same_list(a, b)
  if a == b then return true end
  if a == nil or b == nil or #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

local function same_value(a, b)
  return a == b or (type(a) == "table" and type(b) == "table" and same_list(a, b))
end

local function same_fields(a, b)
  if a == b then return true end
  for name, value in host.next, a do
    if not same_value(value, b[name]) then return false end
  end
  for name in host.next, b do
    if a[name] == nil then return false end
  end
  return true
end

-- Stores in full what the call has recorded so far, because it deviates from the call that it followed.
function alike.leave(g)
  local f = g.follows
  g.follows = nil
  local pattern, call, taken = f.pattern, f.call, 0
  local shift = f.first - pattern.first
  for i, value in ipairs(f.values) do
    g.values[#g.values + 1], g.sizes[value.id] = value, pattern.sizes[i]
  end
  for i = 1, f.nodes do
    local node, inputs, outputs = pattern.nodes[i], {}, {}
    for k, id in ipairs(node.inputs) do
      if id >= pattern.first then
        inputs[k] = id + shift
      else
        taken = taken + 1
        inputs[k] = f.takes[taken]
      end
    end
    for k, id in ipairs(node.outputs) do outputs[k] = id + shift end
    g.nodes[#g.nodes + 1] = { op = node.op, inputs = inputs, outputs = outputs, attrs = node.attrs, call = call.id,
                              axis = node.axis, site = node.site }
    g.inputs_of[#g.nodes], g.more_of[#g.nodes] = f.inputs[i], pattern.more[i]
  end
end

-- Begins a call of `unit`.
function alike.begin(g, unit, call)
  local class = g.patterns[unit.class]
  if not class then
    class = { after = {} }
    g.patterns[unit.class] = class
  end
  local pattern = class.last and class.after[class.last] or class.first
  call.first, call.from_value, call.from_node = g.count, #g.values, #g.nodes
  if pattern and g.bytes + pattern.total > schema.most_exact then pattern = nil end  -- graph.lua reports the excess
  g.follows = pattern and { pattern = pattern, call = call, unit = unit, first = g.count, values = {}, nodes = 0,
                            takes = {}, inputs = {} } or nil
end

-- Whether the inputs correspond to those of the followed call; appends the ids of outside inputs to `takes`.
local function same_inputs(g, f, node, before, inputs)
  local ids, first, takes = node.inputs, f.pattern.first, f.takes
  local shift, taken = f.first - first, #takes
  if #ids ~= #inputs then return false end
  for i = 1, #ids do
    local record, recording = tensor.record(inputs[i])
    local id, same = record.id, false
    if recording == g then
      if ids[i] >= first then
        same = id == ids[i] + shift
      else
        local other = tensor.record(before[i])
        same = id < f.first and record.dtype == other.dtype and same_list(record.shape, other.shape)
        takes[#takes + 1] = id
      end
    end
    if not same then
      for k = #takes, taken + 1, -1 do takes[k] = nil end
      return false
    end
  end
  return true
end

-- Returns the op's outputs if it is the next op of the followed call; `tail`: its name within the unit.
function alike.op(g, kind, inputs, attrs, tail, more, site)
  local f = g.follows
  local pattern, at = f.pattern, f.nodes + 1
  local node = pattern.nodes[at]
  if not node or node.op ~= kind or node.site ~= site or not same_fields(attrs, node.attrs) or
    pattern.tails[#f.values + 1] ~= tail or not same_list(pattern.more[at], more) or
    node.outputs[1] ~= pattern.first + #f.values or
    not same_inputs(g, f, node, pattern.inputs[at], inputs) then
    alike.leave(g)
    return nil
  end
  local outputs, values, prefix = {}, f.values, f.unit.name .. "."
  local done, id, bytes = #values, g.count, g.bytes
  for i = 1, #node.outputs do
    local next = done + i
    local was = pattern.values[next]
    local value = { name = prefix .. pattern.tails[next], dtype = was.dtype, shape = was.shape, kind = "activation",
                    unit = -1, site = site, id = id }
    values[next], outputs[i] = value, tensor.new(value, g)
    id, bytes = id + 1, bytes + pattern.sizes[next]
  end
  g.count, g.bytes = id, bytes
  f.nodes, f.inputs[at] = at, inputs
  return outputs
end

-- Returns the new parameter if it is the next value of the followed call.
function alike.parameter(g, value, tail)
  local f = g.follows
  local next = #f.values + 1
  local was = f.pattern.values[next]
  if not was or was.kind ~= "parameter" or f.pattern.tails[next] ~= tail or was.dtype ~= value.dtype or
    was.site ~= value.site or was.buffer ~= value.buffer or
    not same_list(was.shape, value.shape) or not same_list(was.blocks, value.blocks) or
    was.init.kind ~= value.init.kind or was.init.scale ~= value.init.scale then
    alike.leave(g)
    return nil
  end
  value.id, f.values[next], g.count = g.count, value, g.count + 1
  g.bytes = g.bytes + f.pattern.sizes[next]
  return tensor.new(value, g)
end

-- Returns the pattern of a call stored in full, which later calls can follow.
local function pattern_of(g, unit, call)
  local pattern = { call = call, first = call.first, values = {}, tails = {}, sizes = {}, total = 0, nodes = {},
                    inputs = {}, more = {} }
  local skip = #unit.name + 2
  for i = call.from_value + 1, #g.values do
    local value, at = g.values[i], i - call.from_value
    pattern.values[at], pattern.tails[at], pattern.sizes[at] = value, value.name:sub(skip), g.sizes[value.id]
    pattern.total = pattern.total + g.sizes[value.id]
  end
  for i = call.from_node + 1, #g.nodes do
    local at = i - call.from_node
    pattern.nodes[at], pattern.inputs[at], pattern.more[at] = g.nodes[i], g.inputs_of[i], g.more_of[i]
  end
  return pattern
end

-- Ends the call.
function alike.finish(g, unit, call)
  local f, class = g.follows, g.patterns[unit.class]
  local pattern = f and f.pattern
  if f and f.nodes == #pattern.nodes and #f.values == #pattern.values then
    call.like, call.takes, unit.like = pattern.call, f.takes, true
    pattern.call.count = #pattern.values
    pattern.call.nodes = #pattern.nodes
    g.follows = nil
  else
    if f then alike.leave(g) end
    pattern = pattern_of(g, unit, call)
    class.first = class.first or pattern
  end
  if class.last then class.after[class.last] = pattern end
  class.last = pattern
end

-- Returns the plan's list of calls.
function alike.result(g)
  if g.follows then alike.leave(g) end
  local calls = {}
  for i, call in ipairs(g.calls) do
    calls[i] = { unit = call.unit }
    if call.like then
      calls[i].like, calls[i].first, calls[i].takes = call.like.id, call.first, call.takes
    elseif call.count then
      calls[i].first, calls[i].values, calls[i].nodes = call.first, call.count, call.nodes
    end
  end
  return calls
end

return alike
