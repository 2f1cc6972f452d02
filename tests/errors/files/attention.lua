-- Mistakes with nn.attention of separate q, k and v: --set case=NAME. attention/commands.txt has prun's messages.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { case = { "misspelt", "a function below" }, tp = 1, cp = 1 }
local length, heads = 8, 4

local cases = {}
local function linear(name, x, out) return nn.linear(name, x, out) end
local function parts(x) return linear("q", x, 32), linear("k", x, 32), linear("v", x, 32) end

function cases.misspelt(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads, windows = 3 }
end
function cases.no_heads(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v }
end
function cases.further_argument(x)
  local q, k, v = parts(x)
  return nn.attention({ q = q, k = k, v = v }, heads)
end
function cases.sizes_of_heads_differ(x)
  return nn.attention { q = linear("q", x, 32), k = linear("k", x, 16), v = linear("v", x, 32), heads = heads }
end
function cases.heads_do_not_divide(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = 5 }
end
function cases.heads_cannot_share(x)
  local q = linear("q", x, 32)
  return nn.attention { q = q, k = linear("k", x, 24), v = linear("v", x, 24), heads = 4, kv_heads = 3 }
end
function cases.other_tokens(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = nn.slice(k, 1, 0, 5), v = v, heads = heads, causal = false }
end
function cases.causal_or_not(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = nn.slice(k, 1, 0, 5), v = nn.slice(v, 1, 0, 5), heads = heads }
end
function cases.mask_of_other_size(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads, mask = nn.slice(x, -1, 0, 5) }
end
function cases.mask_from_parameters(x)
  local q, k, v = parts(x)
  local mask = nn.matmul(x, x, { transpose_b = true })
  return nn.attention { q = q, k = k, v = v, heads = heads, mask = mask }
end
function cases.documents_are_numbers(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads, documents = nn.slice(x, -1, 0, 2) }
end
function cases.documents_and_bias(x, batch)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads, documents = batch.tokens,
                        bias = nn.parameter("bias", { heads, length, length }) }
end
function cases.window_of_0(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads, window = 0 }
end
function cases.softcap_below_0(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads, softcap = -1 }
end
function cases.bias_of_other_size(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads, bias = nn.parameter("bias", { 3, length, length }) }
end
function cases.fused_of_odd_width(x) return nn.attention(linear("qkv", x, 98), heads, { window = 2 }) end
function cases.heads_over_ranks(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads }
end
function cases.over_tokens(x)
  local q, k, v = parts(x)
  return nn.attention { q = q, k = k, v = v, heads = heads, window = 3 }
end

local function model(batch)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 32 }, { "normal", 0.02 }))
  end)
  x = nn.unit("block", function() return x + linear("proj", cases[arg.case](x, batch), 32) end)
  return nn.unit("head", function() return prun.losses.cross_entropy(linear("logits", x, 256), batch.targets) end)
end

local strategies = {}
if arg.tp > 1 then strategies[1] = prun.tensor_parallel { axis = "tp" } end
if arg.cp > 1 then strategies[1] = prun.context_parallel { axis = "cp" } end

return prun.plan {
  mesh = prun.mesh { tp = arg.tp, cp = arg.cp }, model = model, strategy = strategies,
  data = prun.data.bytes { path = "README.md", batch = 2, context = length }, optimizer = prun.sgd { lr = 0.1 }, steps = 2,
}
