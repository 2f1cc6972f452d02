-- Loads the functions of all modules, so that scripts forked from this process (script_server.h) find them loaded.

local namespace = require "prun.namespace"
require "prun"

for _, one in pairs(namespace.known) do
  for _, name in ipairs(one.names) do local _ = one.words[name] end
end

return true
