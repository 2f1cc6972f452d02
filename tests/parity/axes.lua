-- A tiny model under strategies given as text ("zero1 dp, tensor_parallel tp sequence=true") on a mesh ("dp=2 tp=2").

local prun = require "prun"

local arg = prun.args {
  list = "ddp dp", mesh = "dp=2", model = { "gpt", "gpt, llama or moe" },
  steps = 3, micro = 2, batch = 16, clip = 1.0, dtype = "f32",
  norms = { false, "report norms of units" },
}

local averages = prun.strategy("averages", { axis = { "dp", "mesh axis of the averages" } }, function(unit, opt)
  unit:every(2, function() prun.all_reduce(unit.params, { axis = opt.axis }) end)
end, { differs = "weights drift between averages" })

local axes, list = {}, {}
for name, size in arg.mesh:gmatch "(%w+)=(%d+)" do axes[#axes + 1] = { name, tonumber(size) } end
for item in arg.list:gmatch "[^,]+" do
  local words = {}
  for word in item:gmatch "%S+" do words[#words + 1] = word end
  local options = { axis = words[2] }
  for i = 3, #words do
    local key, value = words[i]:match "([%w_]+)=(%S+)"
    options[key] = value == "true" or (value ~= "false" and (tonumber(value) or value))
  end
  list[#list + 1] = (words[1] == "averages" and averages or prun[words[1]])(options)
end

local sizes = { vocab = 256, layers = 2, width = 16, heads = 4, context = 8 }
if arg.model == "moe" then sizes.experts = 4 end

return prun.plan {
  mesh = prun.mesh(axes), model = prun.models[arg.model](sizes),
  data = prun.data.bytes { path = "text/sample.txt", batch = arg.batch },
  strategy = list, optimizer = prun.adamw { lr = 1e-3, clip = arg.clip },
  report = arg.norms and { every = 1, norms = true } or nil,
  micro = arg.micro, steps = arg.steps, dtype = arg.dtype,
}
