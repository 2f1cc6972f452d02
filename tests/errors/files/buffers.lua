-- Mistakes with norms of channels and with buffers: --set case=NAME. buffers/commands.txt has prun's messages.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { case = "", pp = 1, cp = 1, micro = 1 }

local function buffer(init) return nn.buffer("mean", { 6 }, init) end

-- x [b, 6, 2, 2].
local cases = {
  -- norms
  groups = function(x) return nn.groupnorm("norm", x, 4) end,
  no_groups = function(x) return nn.groupnorm("norm", x) end,
  no_channels = function(x) return nn.instancenorm("norm", x:flatten():reshape { -1 }) end,
  momentum = function(x) return nn.batchnorm("norm", x, { momentum = 1.5 }) end,
  option = function(x) return nn.batchnorm("norm", x, { running = false }) end,
  one_element = function(x) return nn.batchnorm("norm", nn.mean(x, { 2, 3 }):slice(1, 0, 1)) end,
  name_twice = function(x) return nn.batchnorm("norm", nn.batchnorm("norm", x)) end,
  -- means over samples
  samples_unmarked = function(x) return x - nn.mean(x, 0, { keep = true }) end,
  samples_of_channels = function(x) return x - nn.mean(x, 1, { keep = true, samples = true }) end,
  samples_of_one = function(x) return x - nn.mean(x, { 0, 2, 3 }, { keep = true, samples = true }) end,
  -- buffers
  no_dims = function(x) return x * nn.buffer "mean" end,
  as_parameter = function(x) return x * (buffer() + nn.parameter("mean", { 6 })):reshape { 6, 1, 1 } end,
  update_parameter = function(x)
    local w = nn.parameter("w", { 6 })
    nn.update(w, w + 1)
    return x * w:reshape { 6, 1, 1 }
  end,
  update_activation = function(x)
    nn.update(x, x)
    return x
  end,
  update_twice = function(x)
    local mean = buffer()
    nn.update(mean, mean + 1)
    nn.update(mean, mean + 2)
    return x
  end,
  update_shape = function(x)
    local mean = buffer()
    nn.update(mean, nn.mean(x, { 0, 1 }, { samples = true }))
    return x
  end,
  update_of_samples = function(x)
    local mean = nn.buffer("mean", { x.shape[1], 6 })
    nn.update(mean, mean + nn.mean(x, { 2, 3 }))
    return x
  end,
  update_unread = function(x)
    nn.update(buffer(), nn.mean(x, { 0, 2, 3 }, { samples = true }))
    return x
  end,
  no_eval = function(x) return nn.by_phase { train = x } end,
  phases_differ = function(x) return nn.by_phase { train = x, eval = x:flatten(1) } end,
  only_buffers = function(x) return x end,
}

return prun.plan {
  mesh = prun.mesh { pp = arg.pp, dp = prun.rest, cp = arg.cp },
  model = function(batch)
    local mean
    local x = nn.unit("layer0", function()
      local y = nn.linear("in", batch.x, 24):reshape { -1, 6, 2, 2 }
      if arg.case == "other_unit" then
        mean = buffer()
        nn.update(mean, mean + 1)
      end
      return cases[arg.case] and cases[arg.case](y) or y
    end)
    if arg.case == "again" then
      x = nn.unit("layer1", function() return nn.batchnorm("norm", x) end)
      x = nn.again("layer1", function() return nn.batchnorm("norm", x) end)
    else
      x = nn.unit("layer1", function()
        return mean and x * mean:reshape { 6, 1, 1 } or arg.case == "norm" and nn.batchnorm("norm", x) or x
      end)
    end
    return nn.unit("head", function() return prun.losses.mse(nn.linear("out", x:flatten(1), 4), batch.y) end)
  end,
  data = prun.data.random { batch = 8, inputs = 8, outputs = 4 },
  strategy = { prun.pipeline { axis = "pp" }, prun.ddp { axis = "dp" }, prun.context_parallel { axis = "cp" } },
  optimizer = prun.sgd { lr = 0.1 },
  frozen = arg.case == "only_buffers" and "*" or nil,
  micro = arg.micro,
  steps = 4,
}
