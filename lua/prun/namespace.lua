-- A table of words in which a misspelt word is an error with the likely right one. A word that is a module's name is
-- loaded when it is first used, so that a module may require "prun" while prun is still loading. What is `asked` has
-- another value in each script.

local namespace = { known = {} }  -- by name: the table

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
        require("prun.elsewhere").word(word, names_of(fields)) or host.did_you_mean(tostring(word), names_of(fields))))
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

return setmetatable(namespace, { __call = make })
