-- A small transformer whose ids are computed from data, or read from files that hold the same ids: positions that count
-- real tokens, targets shifted to the right, the last real token, relative positions. ids_test.py compares both.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args { computed = true, dp = 1, tp = 1, pp = 1, zero = 0, micro = 1, dtype = "f64", tokens = 8 }

local function table_of(name, rows) return nn.parameter(name, { rows, 16 }, { "normal", 0.5 }) end

-- The targets before each token; the loss ignores -100, which is -1 here.
local function before(batch)
  if not arg.computed then return batch.before end
  local shifted = nn.pad(nn.slice(batch.labels, 1, 0, -1), 1, 1, 0, 2)
  return nn.where(nn.equal(shifted, -1), 0, shifted)
end

-- Biases of scores: a row of the table for each distance of a key to a query.
local function bias(batch)
  local rows = nn.parameter("distances", { 2 * arg.tokens - 1, 4 }, { "normal", 0.5 })
  if arg.computed then return nn.permute(nn.relative(rows, arg.tokens, arg.tokens), { 2, 0, 1 }) end
  local each = nn.reshape(nn.embedding(batch.distances, rows), { -1, arg.tokens, arg.tokens, 4 })
  return nn.permute(each, { 0, 3, 1, 2 })
end

local function block(name, x, batch)
  local y = nn.rmsnorm("ln", x)
  local q, k, v = nn.linear("q", y, 16), nn.linear("k", y, 16), nn.linear("v", y, 16)
  local mask = arg.computed and nn.not_equal(batch.ids, 0) or batch.mask
  return x + nn.linear("proj", nn.attention { q = q, k = k, v = v, heads = 4, mask = mask, causal = false,
                                              bias = name == "block0" and bias(batch) or nil }, 16)
end

return prun.plan {
  mesh = prun.mesh { pp = arg.pp, dp = arg.dp, tp = arg.tp },
  model = function(batch)
    local x = nn.unit("embed", function()
      local mask = arg.computed and nn.not_equal(batch.ids, 0)
      local positions = arg.computed and nn.cumsum(mask, 1) * mask or batch.positions
      return nn.embedding(batch.ids, table_of("token.weight", 24)) +
        nn.embedding(positions, table_of("position.weight", arg.tokens + 1)) +
        nn.embedding(before(batch), table_of("before.weight", 24))
    end)
    for i = 0, 1 do x = nn.unit("block" .. i, function() return block("block" .. i, x, batch) end) end
    return nn.unit("head", function()
      local last = arg.computed and nn.reshape(nn.argmax(nn.cumsum(nn.not_equal(batch.ids, 0), 1), 1), { -1, 1 })
        or batch.last
      local y = x + nn.gather(x, last)
      return prun.losses.cross_entropy(nn.linear("logits", y, 24), batch.labels)
    end)
  end,
  data = prun.data.arrays { batch = 8, inputs = arg.computed and { ids = "ids.npy", labels = "labels.npy" } or {
    ids = "ids.npy", labels = "labels.npy", positions = "positions.npy", before = "before.npy", last = "last.npy",
    distances = "distances.npy", mask = "mask.npy",
  } },
  strategy = { prun.pipeline { axis = "pp" }, prun.tensor_parallel { axis = "tp" },
               (arg.zero == 3 and prun.zero3 or prun.ddp) { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro = arg.micro,
  steps = 3,
  dtype = arg.dtype,
}
