-- A table of functions in which a misspelt name is an error with the likely right one. A value that is a module's name
-- is loaded on first use, so that a module may require "prun" while prun is still loading. The entries of `asked` are
-- computed anew in each script.

local namespace = { known = {} }  -- name -> table

local function names_of(fields)
  local names = {}
  for name in pairs(fields) do names[#names + 1] = name end
  return names
end

local function make(_, name, fields, asked)
  local function find(self, word)
    if asked and asked[word] then return asked[word]() end
    local value = fields[word]
    if value == nil then
      host.fail(("%s has no '%s'%s"):format(name, tostring(word),
        require("prun.elsewhere").field(word, names_of(fields))))
    end
    if type(value) == "string" and value:find("^prun%.") then value = require(value) end
    if type(value) == "function" then value = host.word(value) end
    rawset(self, word, value)
    return value
  end
  local function refuse(_, word)
    host.fail(("%s is not a plan's to change (field '%s')"):format(name, tostring(word)))
  end
  local words = setmetatable({}, { __index = find, __newindex = refuse })
  namespace.known[name] = { words = words, names = names_of(fields) }
  return words
end

-- Returns the name of one of our functions, or nil.
local function name_of(fn)
  for name, family in pairs(namespace.known) do
    for _, word in ipairs(family.names) do
      if rawget(family.words, word) == fn then return name .. "." .. word end
    end
  end
  return nil
end

host.index_functions(function(fn, field)
  host.fail(("%s is a function and has no field '%s'%s"):format(name_of(fn) or "this", tostring(field),
    require("prun.elsewhere").field(field, {})))
end)

return setmetatable(namespace, { __call = make })
