-- DeepSeek-V3 (DeepSeek-AI, 2024) in small: latent attention, a first block without experts, then a shared expert and
-- experts chosen by sigmoids from the best groups. No choice is dropped: capacity = 1.25 takes further rounds instead.
-- Any pp × dp × ep × tp trains the same weights.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  pp = 1, dp = 1, ep = 1, tp = 1, micro = 1, batch = 8, steps = 10, context = 16, vocab = 256, width = 32, heads = 4,
  latent = 16, layers = 3, experts = 8, choices = 3, hidden = 16, capacity = math.huge, dtype = "f32",
}
local plain, turned, value = 8, 4, 6  -- elements of a head: not rotated, rotated, of v
local heads, normal = arg.heads, { "normal", 0.05 }

local function linear(name, x, out) return nn.linear(name, x, out, { bias = false, init = normal }) end
local function by_heads(x, size) return x:reshape { -1, arg.context, heads, size } end
local function rotated(x) return nn.rotary(x, { size = turned }) end

local function attention(x)
  local size = plain + turned
  local latent_q = nn.rmsnorm("q_norm", linear("down_q", x, arg.latent))
  local q, q_turned = nn.split(by_heads(linear("up_q", latent_q, heads * size), size), { plain, turned }, -1)
  q = nn.concat({ q, by_heads(rotated(q_turned:flatten(2)), turned) }, -1):flatten(2)
  local latent, k_turned = nn.split(linear("down_kv", x, arg.latent + turned), { arg.latent, turned }, -1)
  local up = linear("up_kv", nn.rmsnorm("kv_norm", latent), heads * (plain + value))
  local k, v = nn.split(by_heads(up, plain + value), { plain, value }, -1)
  k = nn.concat({ k, rotated(k_turned):unsqueeze(2):expand { -1, -1, heads, -1 } }, -1):flatten(2)
  return linear("proj", nn.attention { q = q, k = k, v = v:flatten(2), heads = heads }, arg.width)
end

local function experts(x)
  return nn.moe("moe", x, {
    experts = arg.experts, choices = arg.choices, hidden = arg.hidden, shared = arg.hidden, gated = true, init = normal,
    scores = "sigmoid", scale = 2.5, groups = 4, groups_kept = 2, aux = 1e-4, bias_rate = 1e-3,
    capacity = arg.capacity, dropless = arg.capacity < math.huge,
  })
end

return prun.plan {
  mesh = prun.mesh { pp = arg.pp, dp = arg.dp, ep = arg.ep, tp = arg.tp },
  model = function(batch)
    local function embed() return nn.parameter("token.weight", { arg.vocab, arg.width }, normal) end
    local x = nn.unit("embed", function() return nn.embedding(batch.tokens, embed()) end)
    for i = 0, arg.layers - 1 do
      x = nn.unit((i == 0 and "first" or "block") .. i, function()
        local mixed = x + attention(nn.rmsnorm("ln1", x))
        local y = nn.rmsnorm("ln2", mixed)
        if i > 0 then return mixed + experts(y) end
        return mixed + linear("down", nn.silu_mul(linear("gate", y, 64), linear("up", y, 64)), arg.width)
      end)
    end
    return nn.unit("head", function()
      return prun.losses.cross_entropy(linear("logits", nn.rmsnorm("ln", x), arg.vocab), batch.targets)
    end)
  end,
  data = prun.data.bytes { path = "text/sample.txt", batch = arg.batch, context = arg.context },
  strategy = { prun.pipeline { axis = "pp" }, prun.zero3 { axis = "dp" }, prun.expert_parallel { axis = "ep" },
               prun.tensor_parallel { axis = "tp", column = { "up_q", "up_kv", "gate", "up", "moe.shared.gate",
                                                              "moe.shared.up", "logits" } } },
  optimizer = prun.adamw { lr = 1e-2, clip = 1.0 }, micro = arg.micro, steps = arg.steps, dtype = arg.dtype,
}
