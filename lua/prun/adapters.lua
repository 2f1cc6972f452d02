-- The adapters of prun.lora in the recording of a model: nn.linear adds them, the plan freezes everything else, and
-- strategies split them like their layers.
--
-- Surprising fact: the scale is applied to x·A, which has `rank` columns, and not to the layer's outputs.

local graph = require "prun.graph"
local parameter_names = require "prun.parameter_names"

local adapters = {}
local part_a, part_b = ".lora_a", ".lora_b"

-- Notes a linear layer, and returns its output with that of its adapter, if it gets one. `tied`: its weight is another
-- layer's.
function adapters.linear(y, layer, x, out, blocks, tied)
  local g = graph.current
  local given = g.lora
  if not given then return y end
  local name = graph.unit_name() .. "." .. layer
  given.linear[name] = tied and "tied" or "own"
  if tied or not parameter_names.matches(given.match.compiled, name) then return y end
  local options, width = given.options, graph.last_dim(x)
  if options.dropout > 0 then
    g.dropouts = (g.dropouts or 0) + 1
    x = graph.op("dropout", { x }, { p = options.dropout + 0.0, key = g.dropouts })
  end
  local a = graph.parameter(layer .. part_a .. ".weight", { width, options.rank }, { "uniform", 1 / math.sqrt(width) })
  local b = graph.parameter(layer .. part_b .. ".weight", { options.rank, out }, { "zeros" }, blocks)
  local low = graph.op("linear", { x, a }, {}, layer .. part_a)
  local scale = options.alpha / options.rank
  if scale ~= 1 then low = graph.op("scale", { low }, { factor = scale + 0.0 }) end
  return (graph.op("add", { y, (graph.op("linear", { low, b }, {}, layer .. part_b)) }))
end

-- Returns what a recording of the model needs: adapters.linear writes to it.
function adapters.begin(given) return { options = given.options, match = given.match, linear = {} } end

local function is_adapter(name) return name:find("%.lora_[ab]%.weight$") ~= nil end

-- Calls each(unit, parameter) for all parameters: { id, dims, names }.
local function each_parameter(recorded, units, each)
  for i, unit in ipairs(recorded.units) do
    for _, parameter in ipairs(units[i]) do each(unit, parameter) end
  end
end

-- Returns the patterns of the linear layers of the classes of units that have one: { "block*.qkv", .. }.
local function linear_patterns(recorded, linear)
  local list, seen = {}, {}
  for _, unit in ipairs(recorded.units) do
    local numbered = unit.name ~= unit.class
    for name in pairs(unit.parameter_of) do
      local layer = name:match "^(.*)%.[^.]*$"
      local pattern = layer and ("%s%s.%s"):format(unit.class, numbered and "*" or "", layer)
      if layer and linear[unit.name .. "." .. layer] == "own" and not seen[pattern] then
        list[#list + 1], seen[pattern] = pattern, true
      end
    end
  end
  table.sort(list)
  return list
end

-- Fails unless `name` is a linear layer with a weight of its own.
local function require_linear(linear, name, parameter, written, patterns, place)
  if linear[name] == "own" then return end
  local why = linear[name] == "tied" and ("whose weight is that of '%s': an adapter needs a weight of the layer's own")
    :format(parameter.names[1]) or "which is no linear layer"
  host.fail(("prun.lora: 'match' (%s) matches '%s', %s (one of: %s)"):format(written, name, why,
    table.concat(patterns, ", ")), place)
end

-- Returns the end of the message about a pattern that matches no layer.
local function likely_pattern(written, patterns)
  if #patterns == 0 then return ": the model has no linear layers" end
  for _, pattern in ipairs(patterns) do
    if pattern:sub(-#written - 1) == "." .. written then return (" (did you mean '*.%s'?)"):format(written) end
  end
  return host.did_you_mean(written, patterns)
end

local function check_layers(given, recorded, units, linear)
  local place = host.site_of_word(given.site, "match")
  local patterns = linear_patterns(recorded, linear)
  for which, compiled in ipairs(given.match.compiled) do
    local written, matched = given.match.written[which], false
    each_parameter(recorded, units, function(_, parameter)
      for _, name in ipairs(parameter.names) do
        local layer = name:match "^(.*)%.[^.]*$"
        if layer and not is_adapter(name) and layer:find(compiled) then
          require_linear(linear, layer, parameter, written, patterns, place)
          matched = true
        end
      end
    end)
    if not matched then
      host.fail(("prun.lora: 'match' (%s) matches no layer%s"):format(written, likely_pattern(written, patterns)),
        place)
    end
  end
end

local function check_train(given, recorded, units, used)
  local place = host.site_of_word(given.site, "train")
  for which, written in ipairs(given.train and given.train.written or {}) do
    if not used[which] then
      host.fail(("prun.lora: 'train' (%s) matches no parameter%s"):format(written,
        parameter_names.hint(written, recorded, units)), place)
    end
  end
end

-- Returns whether the parameter is trained in full; marks the alternatives of `train` that match it.
local function is_trained(given, parameter, used)
  local trained = false
  for which, compiled in ipairs(given.train and given.train.compiled or {}) do
    for _, name in ipairs(parameter.names) do
      if name:find(compiled) then trained, used[which] = true, true end
    end
  end
  return trained
end

-- Returns for each unit a list of 1 (frozen) or 0 by parameter.
function adapters.marks(given, recorded)
  local units, marks, used, linear = parameter_names.of(recorded), {}, {}, recorded.lora.linear
  local whole = not (host.shrink or host.outline)  -- otherwise the model may have fewer layers than the plan's
  if whole then check_layers(given, recorded, units, linear) end
  for i, unit in ipairs(recorded.units) do
    marks[i] = {}
    for k, parameter in ipairs(units[i]) do
      local name = parameter.names[1] or ""  -- of a buffer
      local trained = is_trained(given, parameter, used)
      local layer = name:sub(#unit.name + 2):match "^(.*)%.weight$"
      if trained and layer and unit.parameter_of[layer .. part_a .. ".weight"] then
        host.fail(("prun.lora: 'train' matches '%s', whose layer has an adapter: choose one of the two"):format(name),
          host.site_of_word(given.site, "train"))
      end
      marks[i][k] = (trained or is_adapter(name)) and 0 or 1
    end
  end
  if whole then check_train(given, recorded, units, used) end
  return marks
end

-- Splits adapters as a strategy splits their layers: B like the outputs, A like the inputs.
function adapters.place(strategy, classes)
  local layers = {}
  for _, class in ipairs(classes) do layers[class.name] = class.layers end
  for _, unit in ipairs(strategy.units) do
    for i = 1, #unit.layers do
      local one = unit.layers[i]
      local part = one.layer .. (one.dim == 0 and part_a or part_b)
      if layers[unit.class][part] then
        unit.layers[#unit.layers + 1] = { layer = part, axis = one.axis, dim = one.dim, site = one.site }
      end
    end
  end
end

return adapters
