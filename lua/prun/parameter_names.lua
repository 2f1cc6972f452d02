-- Parameters by pattern: "*.bias|embed*" matches whole names, * any characters and ? one. A tied weight also has the
-- name of the layer that borrows it, such as "embed.logits.weight".

local tensor = require "prun.tensor"

local parameter_names = {}

-- Returns the alternatives of a pattern as Lua patterns and as written, or nil and the error.
function parameter_names.compile(pattern)
  local compiled, written = {}, {}
  for one in (pattern .. "|"):gmatch "([^|]*)|" do
    one = one:match "^%s*(.-)%s*$"
    if one == "" then return nil, "has an empty alternative: * matches all" end
    written[#written + 1] = one
    compiled[#compiled + 1] = "^" .. one:gsub("[^%w*?]", "%%%0"):gsub("%*", ".*"):gsub("%?", ".") .. "$"
  end
  return compiled, written
end

function parameter_names.matches(compiled, name)
  for _, one in ipairs(compiled) do
    if name:find(one) then return true end
  end
  return false
end

-- Returns for each unit the list of its parameters: { id, dims, names }, the parameter's own name first. Patterns match
-- no buffers, which have no names here.
function parameter_names.of(recorded)
  local by_id, units = {}, {}
  for i, unit in ipairs(recorded.units) do
    for _, parameter in pairs(unit.parameter_of) do
      local value = tensor.record(parameter)
      by_id[value.id] = { id = value.id, dims = #value.shape, names = not value.buffer and { value.name } or {} }
    end
    units[i] = {}
    for k, id in ipairs(unit.parameters) do units[i][k] = by_id[id] end
  end
  for _, also in ipairs(recorded.also) do
    local names = by_id[also.id] and by_id[also.id].names
    if names and #names > 0 and names[#names] ~= also.name then names[#names + 1] = also.name end
  end
  return units
end

-- Returns " (did you mean 'embed'?)": the part of a name or of a unit's class that is next to the pattern's.
function parameter_names.hint(pattern, recorded, units)
  local word = pattern:match "^[^|]*":gsub("[*?%s]", ""):gsub("^%.+", ""):gsub("%.+$", ""):match "[^.]*$"
  local parts, seen = {}, {}
  local function add(part)
    if not seen[part] then parts[#parts + 1], seen[part] = part, true end
  end
  for i, unit in ipairs(recorded.units) do
    add(unit.class)
    for _, parameter in ipairs(units[i]) do
      for part in (parameter.names[1] or ""):sub(#unit.name + 2):gmatch "[^.]+" do add(part) end
    end
  end
  return host.did_you_mean(word, parts)
end

return parameter_names
