-- The architecture of Llama (Touvron et al. 2023): pre-norm blocks of RMSNorm, causal attention with rotary positions,
-- and a SwiGLU MLP; several heads of queries may share keys and values. Units as in gpt.lua.
--
-- Surprising fact: a SwiGLU's three matrices of 8/3 the width have as many elements as a gelu MLP's two of 4 times.

local prun = require "prun"
local parts = require "prun.models.llama_parts"
local nn = prun.nn

return prun.model("llama", parts.options {
  hidden = { 0, "size inside the MLP; 0: 8/3 of the width, rounded up to a multiple of 8", least = 0 },
  base = { 10000.0, "of the rotary angles", least = 1 },
  attention_bias = { false, "add biases to q, k, v and what follows attention" },
  mlp_bias = { false, "add biases in the MLP" },
  mlp = { "swiglu", "or two matrices and a gelu (Starcoder2): gelu is the tanh form",
          choices = { "swiglu", "gelu", "gelu_exact" } },
}, function(opt, batch)
  local hidden = opt.hidden > 0 and opt.hidden or math.ceil(opt.width / 3) * 8

  local function linear(name, x, out, init)
    return nn.linear(name, x, out, { init = init or { "normal", 0.02 }, bias = opt.mlp_bias })
  end

  local x = parts.embed(opt, batch)
  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local mixed = parts.attend("llama", opt, i, x, batch)
      local inner = parts.norm(opt, "ln2", mixed)
      local active
      if opt.mlp == "swiglu" then
        active = nn.silu_mul(linear("gate", inner, hidden), linear("up", inner, hidden))
      else
        active = nn.gelu(linear("up", inner, hidden), opt.mlp == "gelu" and "tanh" or "none")
      end
      return mixed + linear("down", active, opt.width, parts.residual(opt))
    end)
  end
  return parts.head(opt, x, batch)
end)
