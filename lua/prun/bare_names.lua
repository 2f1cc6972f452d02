-- A function of prun that a plan calls without its family, such as zero3 for prun.zero3. Only messages about unknown
-- names load this module.

local elsewhere = require "prun.elsewhere"
local namespace = require "prun.namespace"
require "prun"
require "prun.nn"
require "prun.losses"
require "prun.metrics"

local families = {}
for _, name in ipairs { "prun", "prun.models", "prun.data", "prun.init", "prun.nn", "prun.losses", "prun.metrics" } do
  local names, known = {}, namespace.known[name]
  for word in pairs(known and {} or require(name)) do names[#names + 1] = word end
  families[#families + 1] = { name, known and known.names or names }
end

-- Returns " (here: prun.zero3)" or " (did you mean 'prun.zero3'?)", or "", also for max and others that Lua has.
return function(word)
  if math[word] then return "" end
  local same = {}
  for _, family in ipairs(families) do
    for _, name in ipairs(family[2]) do
      if name == word then same[#same + 1] = ("%s.%s"):format(family[1], name) end
    end
  end
  if #same > 0 then return (" (here: %s)"):format(table.concat(same, " or ")) end
  local ours = elsewhere.word(word, {})
  if ours then return ours end
  for _, family in ipairs(#word > 4 and families or {}) do  -- a short word is near to too many
    local likely = host.did_you_mean(word, family[2]):match("^ %(did you mean '(.*)'%?%)$")
    if likely then return (" (did you mean '%s.%s'?)"):format(family[1], likely) end
  end
  return ""
end
