-- Loads the words of all modules: scripts that are forked from this one (script_server.h) then find them loaded.

local namespace = require "prun.namespace"
require "prun"

for _, one in pairs(namespace.known) do
  for _, name in ipairs(one.names) do local _ = one.words[name] end
end

return true
