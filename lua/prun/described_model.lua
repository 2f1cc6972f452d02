-- A plan of a model that is described by its weights; prun generate records it if it is given a folder of weights. The
-- arguments are the model's name and its options as a text, "vocab=50257 tied=1".

local prun = require "prun"

local arg = prun.args {
  model = { "gpt", "a name of prun.models" },
  arguments = { "", "NAME=VALUE, spaces between; true is 1" },
}

local schema_of = {}
for _, entry in ipairs(prun.models[arg.model].entries) do schema_of[entry.name] = entry end

local options = {}
for name, value in arg.arguments:gmatch("([%w_]+)=(%S+)") do
  local kind = schema_of[name] and schema_of[name].kind
  if kind == "boolean" then
    options[name] = value ~= "0"
  elseif kind == "text" then
    options[name] = value
  else
    options[name] = math.tointeger(tonumber(value)) or tonumber(value)
  end
end

return prun.plan {
  mesh      = prun.mesh { tp = prun.rest },
  model     = prun.models[arg.model](options),
  data      = prun.data.tokens { path = "", batch = 1 },
  strategy  = { prun.tensor_parallel { axis = "tp" } },
  optimizer = prun.sgd { lr = 1 },
}
