-- prun.optimizer { name = "mine", lr = 0.1, state = { "m" }, update = function(p, g, state, at) ... end }: an optimizer
-- of the plan's own. `update` is called once, when the plan is read, with handles of one element: it records the
-- program that the op pointwise_update runs on every element of every shard.

local graph = require "prun.graph"
local kinds = require "prun.kinds"
local optimizer = require "prun.optimizer"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

local word = "prun.optimizer"
local most_states = 4
local settings = { "lr", "weight_decay", "t" }
local own = { name = true, update = true, state = true }  -- options that are no settings of an update

-- Programs of ops that are no pointwise programs themselves.
local programs = { add = "add x0 x1", mul = "mul x0 x1", relu = "relu x0", tanh = "tanh x0" }

local function fail(problem, site) host.fail(("%s: %s"):format(word, problem), site) end

-- Fails unless the names of states are usable; returns the set of them.
local function checked_states(names, site)
  local seen = {}
  if #names > most_states then fail(("'state' has %d names, at most %d"):format(#names, most_states), site) end
  for _, name in ipairs(names) do
    if not name:find "^[%a_][%w_]*$" then
      fail(("a state's name has letters, digits and _, not '%s'"):format(name), site)
    end
    if seen[name] then fail(("'state' has '%s' twice"):format(name), site) end
    seen[name] = true
  end
  return seen
end

local function check_name(name, site)
  if not name:find "^[%a_][%w_]*$" then
    fail(("'name' has letters, digits and _, not '%s': checkpoints call its state after it"):format(name), site)
  end
  local taken = name == "ema" or name == "adam"
  for _, known in ipairs(host.optimizers) do taken = taken or known == name end
  if taken then
    fail(("'%s' is an optimizer of prun: checkpoints would confuse their states; choose another name"):format(name),
      site)
  end
end

-- Returns the program of a node over x0, x1, ..., or nil.
local function program_of(node)
  if node.op == "pointwise" then return node.attrs.program end
  if node.op == "scale" then return ("mul x0 %.17g"):format(node.attrs.factor) end
  return programs[node.op]
end

-- Appends the instructions that value `id` depends on; returns its operand. `made`: operands of values.
local function operand_of(id, producer, made, list)
  if made[id] then return made[id] end
  local node = producer[id]
  local inputs, results = {}, {}
  for i, input in ipairs(node.inputs) do inputs[i] = operand_of(input, producer, made, list) end
  for one in (node.program .. ";"):gmatch "%s*(.-);" do
    list[#list + 1] = one:gsub("%f[%w]([xr])(%d+)%f[%W]", function(kind, at)
      return (kind == "x" and inputs or results)[tonumber(at) + 1]
    end)
    results[#results + 1] = "r" .. #list - 1
  end
  made[id] = results[#results]
  return made[id]
end

-- Returns the results of `update`: the parameter's, then those of the states.
local function checked_results(new, states, names, known, site)
  if not tensor.is(new) then
    fail(("'update' returns the new parameter, then a table of the new states; the first is %s"):format(
      kinds.show(new)), site)
  end
  if #names > 0 and (type(states) ~= "table" or tensor.is(states)) then
    fail(("'update' returns the new states after the parameter, such as { %s = ... }, not %s"):format(names[1],
      kinds.show(states)), site)
  end
  local results = { new }
  for _, name in ipairs(names) do
    local state = states[name]
    if not tensor.is(state) then
      fail(state == nil and ("'update' returns no new '%s'; one that stays is returned as state.%s"):format(name, name)
        or ("the new '%s' must be a tensor, not %s"):format(name, kinds.show(state)), site)
    end
    results[#results + 1] = state
  end
  for name in pairs(type(states) == "table" and not tensor.is(states) and states or {}) do
    if not known[name] then
      fail(("'update' returns '%s', and 'state' does not list it%s"):format(tostring(name),
        host.did_you_mean(tostring(name), names)), site)
    end
  end
  return results
end

-- Returns the program of `update`, and the numbers of the instructions that compute its results.
local function traced(update, names, known, site)
  local ids, results
  local recorded = graph.record("f32", false, function()
    local function input(name) return graph.input(name, "f32", { 1, 1 }) end
    local g, p, state, at = input "the gradient", input "the parameter", {}, {}
    for _, name in ipairs(names) do state[name] = input(name) end
    for _, name in ipairs(settings) do at[name] = input(name) end
    ids = #graph.current.values
    state = schema.closed("the state", state)
    local new, states = update(p, g, state, schema.closed("the fourth argument of 'update'", at))
    results = checked_results(new, states, names, known, site)
  end)
  local producer, made, list, numbers = {}, {}, {}, {}
  for id = 0, ids - 1 do made[id] = "x" .. id end
  for _, node in ipairs(recorded.nodes) do
    node.program = program_of(node)
    if not node.program then
      fail(("'update' computes each element by itself, and nn.%s does not, or is none of the functions that it may " ..
        "use: operators and nn's functions of elements"):format(node.op), node.site)
    end
    for _, id in ipairs(node.outputs) do producer[id] = node end
  end
  for i, result in ipairs(results) do
    local record, recording = tensor.record(result)
    if recording ~= recorded then fail("'update' returns a tensor of another recording", site) end
    local operand = operand_of(record.id, producer, made, list)
    if operand:sub(1, 1) == "x" then
      list[#list + 1] = ("mul %s 1"):format(operand)
      operand = "r" .. #list - 1
    end
    numbers[i] = tonumber(operand:sub(2))
  end
  if #list > 256 then fail(("'update' has %d operations, at most 256"):format(#list), site) end
  return table.concat(list, "; "), numbers
end

local entries = {
  { name = "name", kind = "name", help = "of the optimizer; checkpoints call its state after it" },
  { name = "update", kind = "fn", help = "update(p, g, state, at): returns the new parameter and the new states" },
  { name = "state", kind = "texts", default = {},
    help = "names of the tensors kept for each parameter, zeros at first" },
  { name = "lr", kind = "rate", default = 1e-3, least = 0, help = "learning rate, or how it goes: at.lr" },
  { name = "weight_decay", kind = "number", default = 0.0, least = 0, help = "at.weight_decay, by parameter group" },
  { name = "clip", kind = "number", default = 0.0, least = 0, instead = "; 0 does not clip",
    help = "bound of the norm of all gradients; 0: none" },
  optimizer.ema,
}
schema.register(word, entries)

return schema.constructor(word, entries, function(_, given)
  local site = host.site("user")
  local options = schema.check(word, entries, given, site)
  check_name(options.name, host.site_of_word(site, "name"))
  local names = options.state
  local known = checked_states(names, host.site_of_word(site, "state"))
  local program, results = traced(options.update, names, known, host.site_of_word(site, "update"))
  local kept = {}
  for name, value in pairs(options) do
    if not own[name] then kept[name] = value end
  end
  return { kind_of = "optimizer", name = options.name, op = "pointwise_update", options = kept, site = site,
           numbers = { name = options.name, slots = names, program = program, results = results } }
end)
