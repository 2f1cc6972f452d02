-- A transformer whose tokens have positions from data, as those of documents. rotary_test.py compares the forms of
-- nn.rotary on meshes, and positions from data with those that prun counts.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  form = { "plain", "of the rotation" },
  positions = { "", "a file of positions; none: those that prun counts" },
  norm = { "none", "of q and k: none, heads or columns", choices = { "none", "heads", "columns" } },
  blocks = { true, "q, k and v are blocks of the layer" },
  ln = { "rms", "norm of a block's input", choices = { "rms", "plain_rms", "layernorm", "no_bias", "plain" } },
  dp = 1, cp = 1, tp = 1, pp = 1, zero = 0, sequence = false, micro = 1, dtype = "f64", steps = 3, recompute = false,
}

local forms = {
  plain = {},
  part = { part = 4 },
  neighbors = { interleaved = true },
  part_of_neighbors = { interleaved = true, part = 4, base = 100 },
  yarn = { scaling = "yarn", factor = 4, original_context = 16, beta_fast = 4 },
  longrope = { scaling = "longrope", factors = { 1, 1.5, 2.5, 6 }, factor = 4, original_context = 64 },
}

local H, K, S, width = 4, 2, 8, 16

local function rotated(x, heads, batch)
  local options = { size = S, heads = heads, positions = arg.positions ~= "" and batch.positions or nil }
  for name, value in pairs(forms[arg.form]) do options[name] = value end
  return nn.rotary(x, options)
end

-- The norm of each head, or of all columns.
local function normed(called, x)
  if arg.norm == "columns" then return nn.rmsnorm(called, x) end
  local shape = x.shape
  local heads = nn.reshape(x, { shape[1], shape[2], shape[3] // S, S })
  return nn.reshape(nn.rmsnorm(called, heads), shape)
end

local function queries_keys_values(x, batch)
  if arg.norm == "none" then
    local qkv = nn.linear("qkv", x, (H + 2 * K) * S, { blocks = arg.blocks and { H * S, K * S, K * S } or nil })
    return rotated(qkv, H + K, batch)
  end
  local q, k = nn.linear("q", x, H * S), nn.linear("k", x, K * S)
  q, k = rotated(normed("q_norm", q), H, batch), rotated(normed("k_norm", k), K, batch)
  return nn.concat({ q, k, nn.linear("v", x, K * S) }, -1)
end

local function block_norm(x)
  if arg.ln == "rms" then return nn.rmsnorm("ln", x) end
  if arg.ln == "plain_rms" then return nn.rmsnorm("ln", x, { affine = false }) end
  if arg.ln == "layernorm" then return nn.layernorm("ln", x, 1e-3, { bias = true }) end
  return nn.layernorm("ln", x, { eps = 1e-3, bias = false, affine = arg.ln == "no_bias" })
end

local function model(batch)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.x, nn.parameter("token.weight", { 24, width }, { "normal", 0.5 }))
  end)
  for i = 0, 1 do
    x = nn.unit("block" .. i, function()
      local qkv = queries_keys_values(block_norm(x), batch)
      return x + nn.linear("proj", nn.attention(qkv, H, { kv_heads = K }), width)
    end)
  end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", nn.rmsnorm("ln", x), 24), batch.y)
  end)
end

local zero = { [0] = prun.ddp, prun.zero1, prun.zero2, prun.zero3 }
return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = arg.dp, cp = arg.cp, tp = arg.tp },
  model     = model,
  data      = prun.data.arrays {
    inputs = { x = "x.npy", y = "y.npy", positions = arg.positions ~= "" and arg.positions or nil }, batch = 8,
  },
  strategy  = {
    prun.pipeline { axis = "pp" }, prun.context_parallel { axis = "cp" },
    prun.tensor_parallel { axis = "tp", sequence = arg.sequence }, zero[arg.zero] { axis = "dp" },
    arg.recompute and prun.recompute() or nil,
  },
  optimizer = prun.sgd { lr = 0.5 },
  micro     = arg.micro, steps = arg.steps, dtype = arg.dtype,
}
