-- prun.args { layers = 4, ... }: the plan's own arguments. `--set layers=12` changes one, `prun PLAN --help` lists
-- them. An argument has the type of its default; { 4, "help text" } adds a line of help.

local schema = require "prun.schema"

local declared

-- Parses the text after `--set name=` as the default's type.
local function parse(kind, text)
  if kind == "boolean" or kind == "switch" then
    if text == "true" or text == "1" then return true end
    if text == "false" or text == "0" then return false end
    return kind == "switch" and text or nil
  end
  if kind == "number" and text == "inf" then return math.huge end
  if kind == "integer" or kind == "number" then return schema.convert(kind, tonumber(text)) end
  if kind == "numbers" then
    local list = {}
    for part in text:gmatch("[^,]+") do
      list[#list + 1] = tonumber(part)
      if not list[#list] then return nil end
    end
    return list
  end
  return text
end

-- Returns a default as written after `--set name=`.
local function typed(value)
  return type(value) == "table" and table.concat(value, ",") or tostring(value)
end

-- `shared` (entries of a schema) follow the plan's own arguments, which may override their defaults.
return function(defaults, shared)
  local site = host.site("user")
  if type(defaults) ~= "table" then host.fail("prun.args takes a table of names and defaults", site) end
  if declared then
    host.fail(("prun.args is called once in a plan; the first call is at %s:%d"):format(declared[1], declared[2]), site)
  end
  declared = site
  local entries = schema.from_defaults("prun.args", defaults, site)
  for _, entry in ipairs(shared or {}) do
    if defaults[entry.name] == nil then entries[#entries + 1] = entry end
  end
  local arguments, names, values, by_name = {}, {}, {}, {}
  for i, entry in ipairs(entries) do
    if entry.kind == "bytes" then entry.kind = "text" end
    names[i], values[entry.name], by_name[entry.name] = entry.name, entry.default, entry
    arguments[i] = { name = entry.name, kind = entry.kind, initial = typed(entry.default), help = entry.help,
                     tune = entry.tune or "" }
  end
  host.declare_arguments(arguments)
  for name, text in pairs(host.settings) do
    local entry = by_name[name]
    if not entry then
      host.fail(("--set %s: the plan has no argument '%s'%s"):format(
        name, name, host.did_you_mean(name, names)), site, "usage")
    end
    values[name] = parse(entry.kind, text)
    local place = host.site_of_word(site, name)
    if values[name] == nil then
      host.fail(("--set %s: must be %s, as its default %s is, not '%s'"):format(name, schema.kind_text(entry.kind),
        schema.show(entry.default), text), place, "usage")
    end
    local problem = schema.problem_of(entry, values[name])
    if problem ~= "" then
      host.fail(("--set %s: %s%s"):format(name, problem, entry.choices and "" or ", not " .. text), place, "usage")
    end
  end
  return setmetatable({}, {
    __index = function(_, name)
      if values[name] == nil then
        host.fail(("no argument '%s'%s"):format(tostring(name), host.did_you_mean(tostring(name), names)))
      end
      return values[name]
    end,
    __newindex = function(_, name) host.fail(("arguments are set with --set %s=..., not in the plan"):format(
      tostring(name))) end,
  })
end
