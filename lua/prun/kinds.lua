-- Kinds of options and arguments. Each kind has a name for messages and a function from the given value and the entry
-- to the stored value, or nil if the value is not of this kind. The function may return a second value, the error in
-- words, if the kind's name alone would not explain it.
--
-- Surprising fact: Lua's 8 / 2 is the float 4.0, so a float with an integral value counts as an integer.

local tensor = require "prun.tensor"

local kinds = {}

-- "25 MiB" -> bytes.
local units = { B = 1, KiB = 2 ^ 10, MiB = 2 ^ 20, GiB = 2 ^ 30, KB = 1e3, MB = 1e6, GB = 1e9 }
local function bytes(value)
  if type(value) == "string" then
    local number, unit = value:match("^%s*(-?[%d.]+)%s*(%a+)%s*$")
    value = number and units[unit] and tonumber(number) and tonumber(number) * units[unit]
  end
  return type(value) == "number" and math.tointeger(value) or nil
end

-- Returns the mark of a table that one of our functions made.
local function kind_of(value) return type(value) == "table" and rawget(value, "kind_of") or nil end
kinds.kind_of = kind_of

local function marked(kind)
  return function(value) return kind_of(value) == kind and value or nil end
end

local function of_type(name)
  return function(value) if type(value) == name then return value end end
end

-- Whether a table has exactly the keys 1 .. n.
local function is_list(value)
  if type(value) ~= "table" or kind_of(value) or tensor.is(value) then return false end
  local count = 0
  for _ in host.next, value do count = count + 1 end
  return count == #value
end

kinds.is_list = is_list

local function list_of(element)
  return function(value)
    if not is_list(value) then return nil end
    local result = {}
    for i, one in ipairs(value) do
      result[i] = element(one)
      if result[i] == nil then return nil end
    end
    return result
  end
end

local function integer(value) return type(value) == "number" and math.tointeger(value) or nil end
local number, text = of_type "number", of_type "string"

-- Names appear in programs, messages, traces and comma-separated lists. Most recur in each layer, so checks are cached.
local names = {}
local function name(value)
  if names[value] then return value end
  if type(value) ~= "string" then return nil end
  if value == "" then return nil, "must not be empty" end
  if not utf8.len(value) or value:find("[%c,\"]") then
    return nil, "is a name: it has no commas, quotes or control characters"
  end
  names[value] = true
  return value
end

local function axis(value)
  if type(value) ~= "string" then return nil end
  if not value:find("^[%w_%-]+$") then
    return nil, ("must be the name of a mesh axis, of letters, digits and _, not '%s'"):format(value)
  end
  return value
end

-- Kinds of initial values, and the meaning of the number after each.
local scales = { zeros = false, ones = false, constant = "the value", normal = "its standard deviation",
                 uniform = "the bound" }
local init_names = { "zeros", "ones", "constant", "normal", "uniform" }

-- { "normal", 0.02 }; { "zeros" } may be written "zeros".
local function init(value)
  if type(value) == "string" then value = { value } end
  if not is_list(value) or type(value[1]) ~= "string" then return nil end
  local kind, scale, more = value[1], value[2], value[3]
  if scales[kind] == nil then
    return nil, ("is '%s', and there are no such initial values%s"):format(kind, host.did_you_mean(kind, init_names))
  end
  if not scales[kind] then
    if scale ~= nil then return nil, ("takes no number after \"%s\""):format(kind) end
    return { kind = kind, scale = 0.0 }
  end
  local finite = type(scale) == "number" and scale - scale == 0
  if not finite or more ~= nil or (scale < 0 and kind ~= "constant") then
    return nil, ("takes one number after \"%s\", %s, such as { \"%s\", 0.02 }"):format(kind, scales[kind], kind)
  end
  return { kind = kind, scale = scale + 0.0 }
end

local function dims(value)
  if type(value) == "number" then value = { value } end
  return list_of(integer)(value)
end

-- A text or a list of texts.
local function texts(value)
  if type(value) == "string" then value = { value } end
  return list_of(text)(value)
end

kinds.known = {
  integer = { "a whole number", integer },
  number = { "a number", number },
  text = { "a text", text },
  name = { "a name, a text", name },
  axis = { "the name of a mesh axis, a text", axis },
  stream = { "the name of a stream, a text", function(value)
    if value == "" then return value end
    return name(value)
  end },
  boolean = { "true or false", of_type "boolean" },
  switch = { "true, false or a text", function(value)
    if type(value) == "boolean" or type(value) == "string" then return value end
  end },
  bytes = { 'a size such as "25 MiB"', bytes },
  paths = { "a path or a list of paths", function(value)
    return type(value) == "string" and value or is_list(value) and #value > 0 and texts(value) or nil
  end },
  numbers = { "a list of numbers", list_of(number) },
  integers = { "a list of whole numbers", list_of(integer) },
  texts = { "a list of texts", texts },
  dims = { "a list of dims, such as { 5 }", dims },
  init = { 'initial values, such as { "normal", 0.02 }', init },
  tensor = { "a tensor", function(value) return tensor.is(value) and value or nil end },
  tensors = { "a list of tensors, such as { a, b }", function(value)
    if not is_list(value) or #value == 0 then return nil end
    for _, one in ipairs(value) do
      if not tensor.is(one) then return nil end
    end
    return value
  end },
  operand = { "a tensor or a number", function(value)
    if type(value) == "boolean" then
      return nil, ("is %s, and a number is due: a comparison of tensors is nn.less(a, b), nn.equal(a, b) and the like")
        :format(value)
    end
    return (tensor.is(value) or type(value) == "number") and value or nil
  end },
  count = { "a whole number or a tensor", function(value) return tensor.is(value) and value or integer(value) end },
  batches = { 'a whole number or "all"', function(value) return value == "all" and value or integer(value) end },
  fn = { "a function", of_type "function" },
  table = { "a table", of_type "table" },
  loads = { "a table of the model's, {}, that layers of nn.moe fill", function(value)
    return type(value) == "table" and not kind_of(value) and not tensor.is(value) and value or nil
  end },
  mesh = { "a mesh: prun.mesh { dp = prun.world }", marked "mesh" },
  data = { "data, such as prun.data.bytes { ... }", marked "data" },
  weights = { "weights that exist: prun.init.from { path = \"model\" }", marked "weights" },
  lora = { "adapters: prun.lora { match = \"block*.qkv\" }", marked "lora" },
  eval = { "an evaluation: prun.eval { every = 50, batches = 4 }", marked "eval" },
  checkpoint = { "checkpoints: prun.checkpoint { every = 500 }", marked "checkpoint" },
  rate = { "a number or a schedule, such as prun.cosine { lr = 3e-4, warmup = 100 }", function(value)
    if type(value) == "number" or kind_of(value) == "rate" then return value end
    if type(value) == "function" then return require("prun.learning_rate").tabulated(value) end
    if is_list(value) and #value > 0 and is_list(value[1]) then return require("prun.learning_rate").points(value) end
  end },
  optimizer = { "an optimizer, such as prun.adamw { ... }", marked "optimizer" },
  strategies = { 'a list of strategies, such as { prun.zero3 { axis = "dp" } }', function(value)
    return kind_of(value) == "strategy" and { value } or of_type "table"(value)
  end },
  schedule = { 'a schedule\'s name, such as "1f1b", or what prun.schedule made', function(value)
    return type(value) == "string" and value or marked "schedule"(value)
  end },
  model = { "a model, such as prun.models.gpt { ... }, or a function", function(value)
    return type(value) == "function" and value or marked "model"(value)
  end },
  slot = { "what prun.forward or prun.backward returned", function(value)
    return type(value) == "table" and #value >= 3 and value or nil
  end },
  -- in a hook
  target = { "one of the unit's vectors, such as unit.grads", marked "target" },
  gathered = { "unit.params or what prun.all_gather returned", function(value)
    return marked "target"(value) or marked "handle"(value)
  end },
  handle = { "what prun.all_gather returned", marked "handle" },
  last = { "unit.last", marked "last" },
}

-- Returns a value as messages and --help show it.
function kinds.show(value)
  if type(value) == "string" then return "'" .. value .. "'" end
  if type(value) == "number" then
    return value ~= value and "nan (not a number)" or tostring(math.tointeger(value) or value)
  end
  if tensor.is(value) then return "a tensor" end
  if is_list(value) then
    local parts = {}
    for i, element in ipairs(value) do parts[i] = type(element) == "table" and "a table" or kinds.show(element) end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  if type(value) == "table" and rawget(value, "entries") then return "a word without its options, { ... }" end
  if type(value) == "table" or type(value) == "function" then
    return kind_of(value) and ("a " .. kind_of(value)):gsub("_", " ") or "a " .. type(value)
  end
  return tostring(value)
end

return kinds
