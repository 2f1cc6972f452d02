-- A small network whose layers normalize channels, under strategies given as text ("zero1 dp, pipeline pp") on a mesh
-- ("dp=2 pp=2"). Samples are images [2, 3, 4]; linear layers mix their pixels and their channels.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  norm = { "batch", "the layers", choices = { "batch", "flat", "group", "instance", "own" } },
  list = "ddp dp", mesh = "dp=1", again = { "", "units that backward computes again" },
  micro = 1, batch = 8, steps = 3, dtype = "f64", layers = 4, frozen = "", optimizer = "adamw",
  x = "", y = "", cumulative = false, track = true, affine = true, clip = 0.0, eval = true, lr = 0.01, from = "",
}

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
  if arg.mesh:find(words[2] .. "=") then list[#list + 1] = prun[words[1]](options) end
end
if arg.again ~= "" then list[#list + 1] = prun.recompute { units = { arg.again } } end

local norms = {}

function norms.batch(x)
  return nn.batchnorm("norm", x, { cumulative = arg.cumulative, track_running_stats = arg.track, affine = arg.affine })
end
function norms.flat(x) return nn.batchnorm("norm", x:reshape { -1, 72 }):reshape { -1, 6, 3, 4 } end
function norms.group(x) return nn.groupnorm("norm", x, 2, { affine = arg.affine }) end
function norms.instance(x) return nn.instancenorm("norm", x, { affine = arg.affine }) end

-- A norm by the mean of squares of each channel, which it keeps as its square root and counts its batches.
function norms.own(x)
  local size = nn.buffer("size", { 6 }, "ones")
  local square = nn.mean(x * x, { 0, 2, 3 }, { samples = true })
  nn.update(size, nn.sqrt(0.75 * size * size + 0.25 * square))
  local scale = nn.by_phase { train = nn.sqrt(square + 1e-5), eval = size }
  return x / scale:reshape { 6, 1, 1 } * (1 + 0.1 * size):reshape { 6, 1, 1 }
end

return prun.plan {
  mesh = prun.mesh(axes),
  model = function(batch)
    local x = nn.unit("layer0", function()
      return norms[arg.norm](nn.linear("linear", batch.x, 72):reshape { -1, 6, 3, 4 })
    end)
    for i = 1, arg.layers - 1 do
      x = nn.unit("layer" .. i, function()
        local y = nn.linear("linear", nn.relu(x):flatten(1), 72, { bias = false })
        return x + norms[arg.norm](y:reshape { -1, 6, 3, 4 })
      end)
    end
    return nn.unit("head", function()
      local y = nn.linear("down", nn.relu(nn.linear("up", nn.mean(x, { 2, 3 }), 16)), 8)
      return prun.losses.mse(nn.linear("out", y, 4), batch.y)
    end)
  end,
  data = arg.x ~= "" and prun.data.arrays { x = arg.x, y = arg.y, batch = arg.batch, order = "given" }
         or prun.data.random { batch = arg.batch, inputs = 24, outputs = 4 },
  eval = arg.eval and prun.eval { every = 2, batches = 2, data = prun.data.random { batch = arg.batch, inputs = 24,
                                                                               outputs = 4 } } or nil,
  init = arg.from ~= "" and prun.init.from { path = arg.from } or nil,
  strategy = list,
  frozen = arg.frozen ~= "" and arg.frozen or nil,
  optimizer = arg.optimizer == "sgd" and prun.sgd { lr = arg.lr, momentum = 0.9, clip = arg.clip }
              or prun.adamw { lr = arg.lr, clip = arg.clip, weight_decay = 0.1 },
  micro = arg.micro, steps = arg.steps, dtype = arg.dtype,
}
