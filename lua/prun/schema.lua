-- One entry for each option and argument of each function: name, kind (kinds.lua), default, help. Entries are used to
-- check a plan's values, to suggest the likely right name, for --help, and for the editor stubs.
--
-- An entry without a default is required unless it is `optional`. Numbers are finite unless the entry is `infinite`;
-- least, most, above and below bound them and the elements of lists; `count` is the required length of a list.

local kinds = require "prun.kinds"
-- Only error messages load prun.elsewhere.

local schema = { registered = {}, words = {} }

-- The largest integer without a bound of its own: the runtime's int. Products of sizes are bounded separately.
local most_integer = 2147483647
schema.most_exact = 9007199254740992  -- 2^53: floats represent all integers up to this exactly

-- Registers a function's options for stub_writer.lua; returns them.
function schema.register(word, entries)
  schema.registered[word] = entries
  return entries
end

-- Returns the value converted to `kind`, or nil.
function schema.convert(kind, value) return (kinds.known[kind][2](value)) end
function schema.kind_text(kind) return kinds.known[kind][1] end
schema.show = kinds.show

local function names_of(entries)
  local names = {}
  for i, entry in ipairs(entries) do names[i] = entry.name end
  return names
end

-- Returns the range error of a number, or "".
local function range_problem(entry, value)
  local most = entry.most or (entry.kind == "integer" and most_integer) or
    (entry.kind == "bytes" and schema.most_exact) or nil
  if value ~= value then return entry.nan and "" or "must be a number" end
  if (value == math.huge or value == -math.huge) and not entry.infinite then return "must be finite" end
  if entry.least and value < entry.least then return ("must be at least %s"):format(entry.least) end
  if entry.above and value <= entry.above then return ("must be more than %s"):format(entry.above) end
  if entry.below and value >= entry.below then return ("must be less than %s"):format(entry.below) end
  if most and value > most then return ("must be at most %s"):format(most) end
  return ""
end

-- Returns the error of a value of the right kind, or "".
local function problem_of(entry, value)
  if entry.choices and type(value) ~= "boolean" then
    for _, choice in ipairs(entry.choices) do
      if choice == value then return "" end
    end
    return ("cannot be '%s'%s"):format(value, require("prun.elsewhere").value(value, entry.choices))
  end
  local kind = type(value)
  if kind == "number" then return range_problem(entry, value) end
  if kind == "table" and kinds.is_list(value) then
    if entry.count and #value ~= entry.count then return ("must be %d numbers"):format(entry.count) end
    for _, element in ipairs(value) do
      local problem = type(element) == "number" and range_problem(entry, element) or ""
      if problem ~= "" then return problem:gsub("^must be", "must be numbers that are") end
    end
  end
  return ""
end
schema.problem_of = problem_of

-- Finds a site only for errors, because most calls are valid.
local function found(place)
  if type(place) == "function" then return place() end
  return place
end

-- Returns the stored form of a valid value, else nil.
local function accepted(entry, given)
  local value = kinds.known[entry.kind][2](given)
  if value ~= nil and problem_of(entry, value) == "" then return value end
  return nil
end

-- Returns the stored form of a value, or fails. `what`: the function; `place`: its site, or a function that finds it.
-- Without `place` the message has the line of the user and that of prun.
function schema.value(what, entry, given, place)
  local value, why = kinds.known[entry.kind][2](given)
  if value == nil then
    local counts = entry.kind == "integer" or entry.kind == "bytes" or entry.kind == "count"
    local whole = counts and type(given) == "number" and given == math.floor(given) and given - given == 0
    why = why or whole and problem_of(entry, given)
    if not why or why == "" then
      local choices = entry.choices and kinds.show(entry.choices):sub(2, -2)
      local wanted = entry.kind == "switch" and "true, false or " .. choices or choices and "one of " .. choices or
        kinds.known[entry.kind][1]
      why = ("must be %s, not %s"):format(wanted, kinds.show(given))
    elseif whole then
      why = ("%s, not %s"):format(why, kinds.show(given))
    end
    host.fail(("%s: '%s' %s"):format(what, entry.name, why), found(place))
  end
  local problem = problem_of(entry, value)
  if problem ~= "" then
    local shown = entry.choices and "" or (", not %s%s"):format(kinds.show(given), entry.instead or "")
    host.fail(("%s: '%s' %s%s"):format(what, entry.name, problem, shown), found(place))
  end
  return value
end

-- Returns the kind of option that a default value implies.
function schema.kind_of_default(value)
  if math.type(value) == "integer" then return "integer" end
  if type(value) == "number" then return "number" end
  if type(value) == "boolean" then return "boolean" end
  if type(value) == "string" then return schema.convert("bytes", value) and "bytes" or "text" end
  if type(value) ~= "table" then return nil end
  return schema.convert("numbers", value) and "numbers" or schema.convert("texts", value) and "texts" or nil
end

-- Bounds and other fields that from_defaults accepts besides default and help.
local bounds = {
  { name = "least", kind = "number", optional = true, signed = true, infinite = true, help = "the smallest value" },
  { name = "most", kind = "number", optional = true, signed = true, infinite = true, help = "the largest value" },
  { name = "above", kind = "number", optional = true, signed = true, infinite = true, help = "values are larger" },
  { name = "below", kind = "number", optional = true, signed = true, infinite = true, help = "values are smaller" },
  { name = "choices", kind = "texts", optional = true, help = "what a text may be" },
  { name = "tune", kind = "text", optional = true,
    help = "what prun tune tries: values between commas, or divisors or node, of the ranks or of a node's devices" },
}

local function bounds_of(what, name, given, place)
  local named = {}
  for key, value in pairs(given) do
    if type(key) ~= "number" then named[key] = value end
  end
  return schema.check(("%s: the default of '%s'"):format(what, name), bounds, named, place)
end

-- Whether an entry is { default, "help", least = 1 } and not a list. `over`, a list of axes, then needs no help.
local function is_described(name, given)
  if type(given) ~= "table" or given[3] ~= nil then return false end
  if name == "over" and type(given[1]) == "string" and not tostring(given[2]):find(" ") then return false end
  return type(given[2]) == "string" or (#given == 1 and not kinds.is_list(given))
end

-- Returns entries from { name = default } or { name = { default, "help", least = 1, choices = { ... } } }, in source
-- order.
function schema.from_defaults(what, defaults, site)
  local entries = {}
  for name, given in pairs(defaults) do
    local place = host.site_of_word(site, tostring(name))
    if type(name) ~= "string" then host.fail(what .. " takes names with defaults, such as { width = 256 }", site) end
    local default, help, more = given, "", {}
    if is_described(name, given) then
      default, help, more = given[1], given[2] or "", bounds_of(what, name, given, place)
    end
    local kind = schema.kind_of_default(default)
    if kind == "boolean" and more.choices then kind = "switch" end
    if not kind then
      host.fail(("%s: the default of '%s' is %s; it may be a number, a text, true or false, or a list of numbers")
        :format(what, name, kinds.show(default)), place)
    end
    entries[#entries + 1] = { name = name, kind = kind, default = default, help = help, line = place[2],
                              least = more.least, most = more.most or kind == "integer" and schema.most_exact or nil,
                              above = more.above, below = more.below, choices = more.choices, tune = more.tune,
                              infinite = default == math.huge or not (more.least or more.above) }
    schema.value(what .. ": the default of", entries[#entries], default, place)
  end
  table.sort(entries, function(a, b)
    if a.line ~= b.line then return a.line < b.line end
    return a.name < b.name
  end)
  return entries
end

-- Fails for the first field that is not an option.
local function refuse_unknown(what, entries, given, site)
  local by_name = {}
  for _, entry in ipairs(entries) do by_name[entry.name] = entry end
  for name, value in pairs(given) do
    if not by_name[name] then
      local place = host.site_of_word(site or host.site("user"), tostring(name))
      if type(name) == "number" then
        host.fail(("%s takes options with names, such as { %s = ... }, not %s alone"):format(what,
          entries[1] and entries[1].name or "name", kinds.show(value)), place)
      end
      host.fail(("%s has no option '%s'%s"):format(what, tostring(name),
        require("prun.elsewhere").option(name, by_name, names_of(entries))), place)
    end
  end
end

-- Returns the options with defaults filled in. Fails at the line of the wrong field; `site`: the call's site, or nil
-- for the running line.
function schema.check(what, entries, given, site)
  if given == nil then given = {} end
  if type(given) ~= "table" or kinds.kind_of(given) then
    host.fail(("%s takes a table of options, not %s"):format(what, kinds.show(given)), site or host.site("user"))
  end
  local values, left = {}, 0
  for _ in host.next, given do left = left + 1 end
  for _, entry in ipairs(entries) do
    local name = entry.name
    local value = given[name]
    if value ~= nil then
      left, values[name] = left - 1, accepted(entry, value)
      if values[name] == nil then
        schema.value(what, entry, value, function() return host.site_of_word(site or host.site("user"), name) end)
      end
    else
      values[name] = entry.default
      if entry.kind == "bytes" and entry.default then values[name] = schema.convert("bytes", entry.default) end
    end
  end
  if left > 0 then refuse_unknown(what, entries, given, site) end
  for _, entry in ipairs(entries) do
    if values[entry.name] == nil and not entry.optional then
      host.fail(("%s needs '%s': %s"):format(what, entry.name, entry.help), site or host.site("user"))
    end
  end
  return values
end

-- Defines a function with positional `arguments` (entries), then a table of `arguments.options`, if any. fn receives
-- the checked values, the options and, if `arguments.site` is true, the user's site. `arguments.scope`: the scope in
-- which an overloaded name has this meaning; `arguments.before()` may reject the call first.
function schema.word(word, arguments, fn)
  local options, count, before = arguments.options, #arguments, arguments.before
  schema.words[arguments.scope and arguments.scope .. " " .. word or word] = arguments
  if options and not arguments.scope then schema.register(word, options) end
  local name, places = word:gsub("^prun%.nn", "nn"), names_of(arguments)
  if options then places[count + 1] = "options" end
  local shown, last = ("%s(%s)"):format(name, table.concat(places, ", ")), #places + 1
  return function(...)
    if before then before() end
    local given = { ... }
    for i = last, select("#", ...) do
      if given[i] ~= nil then
        host.fail(("%s takes no %sargument, and there is %s"):format(shown, i == 1 and "" or "further ",
          kinds.show(given[i])))
      end
    end
    for i = 1, count do
      local entry, value = arguments[i], given[i]
      if value ~= nil then
        given[i] = accepted(entry, value)
        if given[i] == nil then schema.value(shown, entry, value) end
      elseif entry.default == nil and not entry.optional then
        host.fail(("%s needs '%s': %s"):format(shown, entry.name, entry.help))
      else
        given[i] = entry.default
      end
    end
    if options then given[count + 1] = schema.check(name, options, given[count + 1]) end
    if arguments.site then given[last] = host.site("user") end
    return fn(table.unpack(given, 1, last))
  end
end

-- Returns the printed form of a value; tables and functions are rejected because their addresses differ between runs.
function schema.printed(word, value)
  if type(value) ~= "table" and type(value) ~= "function" then return tostring(value) end
  return host.fail(("%s prints texts, numbers and tensors, not %s"):format(word, kinds.show(value)))
end

-- Defines a method, like schema.word, of a table that one of our functions made: fn receives the table first.
function schema.method(kind, word, arguments, fn)
  arguments.scope = kind
  local self_given
  local call = schema.word(word, arguments, function(...) return fn(self_given, ...) end)
  return function(self, ...)
    if kinds.kind_of(self) ~= kind then
      host.fail(("%s is called with a colon, as %s(...)"):format(word:gsub("^.*:", "'") .. "'", word))
    end
    self_given = self
    return call(...)
  end
end

-- Returns a function call(self, given) of options as a table, whose `entries` can be listed. Another field is an error.
function schema.constructor(what, entries, call)
  return setmetatable({ entries = entries }, {
    __call = host.word(call),
    __index = function(_, field)
      local hint = require("prun.elsewhere").field(field, {})
      local option = not hint:find "^ %(here" and entries[1] and entries[1].name
      for _, entry in ipairs(entries) do
        if entry.name == field then option = field end
      end
      if option then hint = (" (it takes options: { %s = ... })"):format(option) end
      host.fail(("%s has no field '%s'%s"):format(what, tostring(field), hint))
    end,
  })
end

-- Returns a table of these fields in which a misspelt field is an error with the likely right one.
function schema.closed(what, fields)
  return setmetatable(fields, { __index = function(self, name)
    local names = {}
    for known in next, self do
      if known ~= "kind_of" then names[#names + 1] = known end
    end
    host.fail(("%s has no '%s'%s"):format(what, tostring(name), host.did_you_mean(tostring(name), names)))
  end })
end

return schema
