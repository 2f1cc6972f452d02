-- One entry for each option of each word: name, kind, default, help. It serves the check of a plan's fields, the likely
-- right word, --help, and the editor stubs.
--
-- An entry without a default that is not `optional` must be given.

local schema = { registered = {} }

-- Makes the options of a word known to stub_writer.lua. Returns them.
function schema.register(word, entries)
  schema.registered[word] = entries
  return entries
end

-- "25 MiB" -> bytes.
local units = { B = 1, KiB = 2 ^ 10, MiB = 2 ^ 20, GiB = 2 ^ 30, KB = 1e3, MB = 1e6, GB = 1e9 }
local function bytes(value)
  if type(value) == "string" then
    local number, unit = value:match("^%s*([%d.]+)%s*(%a+)%s*$")
    value = number and units[unit] and tonumber(number) and tonumber(number) * units[unit]
  end
  return value and math.tointeger(value)
end

local function marked(kind)
  return function(value)
    if type(value) == "table" and rawget(value, "kind_of") == kind then return value end
  end
end

-- Each kind: what it is called, and the value as the plan holds it, or nil when the given one is not of this kind.
local kinds = {
  integer = { "a whole number", function(value) return type(value) == "number" and math.tointeger(value) or nil end },
  number = { "a number", function(value) return type(value) == "number" and value or nil end },
  text = { "a text", function(value) return type(value) == "string" and value or nil end },
  boolean = { "true or false", function(value) if type(value) == "boolean" then return value end end },
  bytes = { 'a size such as "25 MiB"', bytes },
  numbers = { "a list of numbers", function(value)
    if type(value) ~= "table" then return nil end
    for _, element in ipairs(value) do if type(element) ~= "number" then return nil end end
    return value
  end },
  texts = { "a list of texts", function(value)
    if type(value) == "string" then value = { value } end
    if type(value) ~= "table" then return nil end
    for _, element in ipairs(value) do if type(element) ~= "string" then return nil end end
    return value
  end },
  array = { "a list", function(value) return type(value) == "table" and value or nil end },
  any = { "anything", function(value) return value end },
  mesh = { "a mesh: prun.mesh { dp = prun.world }", marked "mesh" },
  data = { "data, such as prun.data.bytes { ... }", marked "data" },
  eval = { "an evaluation: prun.eval { every = 50, batches = 4 }", marked "eval" },
  rate = { "a number or a schedule, such as prun.cosine { lr = 3e-4, warmup = 100 }", function(value)
    return type(value) == "number" and value or marked "rate"(value)
  end },
  optimizer = { "an optimizer, such as prun.adamw { ... }", marked "optimizer" },
  model = { "a model, such as prun.models.gpt { ... }, or a function", function(value)
    return type(value) == "function" and value or marked "model"(value)
  end },
}

-- The value in the form of `kind`, or nil.
function schema.convert(kind, value) return kinds[kind][2](value) end
function schema.kind_text(kind) return kinds[kind][1] end

-- The kind of option that a default value stands for.
function schema.kind_of_default(value)
  if math.type(value) == "integer" then return "integer" end
  if type(value) == "number" then return "number" end
  if type(value) == "boolean" then return "boolean" end
  if type(value) == "string" then return bytes(value) and "bytes" or "text" end
  if type(value) == "table" then return type(value[1]) == "string" and "texts" or "numbers" end
  return nil
end

-- A value as a message or --help shows it.
function schema.show(value)
  if type(value) == "string" then return "'" .. value .. "'" end
  if type(value) == "table" then
    local parts = {}
    for i, element in ipairs(value) do parts[i] = schema.show(element) end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  return tostring(value)
end

-- Entries from { name = default } or { name = { default, "help", least = 1, choices = { ... } } }, in the order in
-- which the source has them.
function schema.from_defaults(what, defaults, site)
  local entries = {}
  for name, given in pairs(defaults) do
    local place = host.site_of_word(site, tostring(name))
    if type(name) ~= "string" then host.fail(what .. " takes names with defaults, such as { width = 256 }", site) end
    local default, help, more = given, "", {}
    if type(given) == "table" and type(given[2]) == "string" then default, help, more = given[1], given[2], given end
    local kind = schema.kind_of_default(default)
    if not kind then
      host.fail(("%s: the default of '%s' is a %s; it may be a number, a text, true or false, or a list of numbers")
        :format(what, name, type(default)), place)
    end
    entries[#entries + 1] = { name = name, kind = kind, default = default, help = help, line = place[2],
                              least = more.least, choices = more.choices }
  end
  table.sort(entries, function(a, b)
    if a.line ~= b.line then return a.line < b.line end
    return a.name < b.name
  end)
  return entries
end

local function names_of(entries)
  local names = {}
  for i, entry in ipairs(entries) do names[i] = entry.name end
  return names
end

-- The options with defaults filled in. Fails at the line of the wrong field.
function schema.check(what, entries, given, site)
  if given == nil then given = {} end
  if type(given) ~= "table" then
    host.fail(("%s takes a table of options, not %s"):format(what, schema.show(given)), site)
  end
  local by_name, values = {}, {}
  for _, entry in ipairs(entries) do by_name[entry.name] = entry end
  for name, value in pairs(given) do
    local entry = by_name[name]
    local place = host.site_of_word(site, tostring(name))
    if not entry then
      local hint = #entries > 0 and host.did_you_mean(tostring(name), names_of(entries)) or ""
      host.fail(("%s has no option '%s'%s"):format(what, tostring(name), hint), place)
    end
    values[name] = schema.convert(entry.kind, value)
    if values[name] == nil then
      local shown = (type(value) == "table" or type(value) == "function") and "a " .. type(value) or schema.show(value)
      host.fail(("%s: '%s' must be %s, not %s"):format(what, name, schema.kind_text(entry.kind), shown), place)
    end
    if entry.least and type(values[name]) == "number" and values[name] < entry.least then
      host.fail(("%s: '%s' must be at least %s, not %s"):format(what, name, entry.least, schema.show(value)), place)
    end
    if entry.choices then
      local found = false
      for _, choice in ipairs(entry.choices) do found = found or choice == value end
      if not found then
        host.fail(("%s: '%s' cannot be '%s'%s"):format(
          what, name, value, host.did_you_mean(value, entry.choices)), place)
      end
    end
  end
  for _, entry in ipairs(entries) do
    if values[entry.name] == nil then
      if entry.default == nil and not entry.optional then
        host.fail(("%s needs '%s': %s"):format(what, entry.name, entry.help), site)
      end
      values[entry.name] = entry.default
      if entry.kind == "bytes" and entry.default then values[entry.name] = schema.convert("bytes", entry.default) end
    end
  end
  return values
end

return schema
