-- Losses of all kinds in several stages, named and unnamed, and metrics, under strategies given as text as in axes.lua.

local prun = require "prun"
local nn, losses = prun.nn, prun.losses

local arg = prun.args {
  list = "ddp dp", mesh = "dp=1", steps = 3, micro = 2, batch = 8, layers = 4, moe = false, dtype = "f32",
  shift = { 0.0, "added to the coefficient of the loss of an early layer, for mutants" },
  l2 = { true, "with an L2 loss" },
  again = { "", "classes of units to recompute, such as block,head" },
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
  list[#list + 1] = prun[words[1]](options)
end
if arg.again ~= "" then
  local units = {}
  for class in arg.again:gmatch "%a+" do units[#units + 1] = class end
  list[#list + 1] = prun.recompute { units = units }
end

local vocab, width, context = 256, 16, 8

local function model(batch)
  local loads = {}
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { vocab, width }, { "normal", 0.3 }))
  end)
  local first, total = x, nil
  for i = 0, arg.layers - 1 do
    x = nn.unit("block" .. i, function()
      local qkv = nn.linear("qkv", nn.rmsnorm("ln1", x), 3 * width, { blocks = { width, width, width } })
      local mixed = x + nn.linear("proj", nn.attention(qkv, 2), width)
      local normed = nn.rmsnorm("ln2", mixed)
      local y = mixed + (arg.moe and nn.moe("moe", normed, { experts = 4, hidden = 16, loads = loads }) or
        nn.linear("down", nn.gelu(nn.linear("up", normed, 32)), width))
      if i == 0 then total = 0.25 * losses.mse(y, first) end
      if i == 1 then total = total + (0.5 + arg.shift) * losses.mean_square(y):named "size" end
      return y
    end)
  end
  return nn.unit("head", function()
    local logits = nn.linear("logits", nn.rmsnorm("ln", x), vocab, { bias = false })
    local text = losses.cross_entropy(logits, batch.targets)
    local one = nn.linear("one", x, 4)
    total = text:named "text" + total + (1e-2 * losses.z_loss(logits)):named "z" -
      losses.bce(one, nn.scale(one, 0.1)) / 8 +
      0.1 * losses.kl(logits, nn.scale(logits, 0.5), { temperature = 2.0 })
    if arg.l2 then total = total + (1e-2 * losses.l2 "*.weight"):named "l2" end
    if arg.moe then total = total + 0.3 * losses.balance(loads):named "balance" end
    return total, { accuracy = prun.metrics.accuracy(logits, batch.targets), half = 0.5 * text,
                    level = prun.metrics.mean(logits) }
  end)
end

return prun.plan {
  mesh = prun.mesh(axes), model = model, metrics = "steps",
  data = prun.data.bytes { path = "text/sample.txt", batch = arg.batch, context = context },
  eval = prun.eval { every = 2, batches = 2 },
  strategy = list, optimizer = prun.adamw { lr = 1e-2, clip = 1.0 },
  micro = arg.micro, steps = arg.steps, dtype = arg.dtype, reduce = "rank_order",
}
