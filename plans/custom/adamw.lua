-- An optimizer of one's own: AdamW from functions of elements, which equals prun.adamw.

local prun = require "prun"
local nn = prun.nn

local function adamw(opt)
  local beta1, beta2, eps = 0.9, 0.999, 1e-8
  return prun.optimizer {
    name = "my_adamw", lr = opt.lr, weight_decay = opt.weight_decay, clip = opt.clip, state = { "m", "v" },
    -- p: parameter, g: gradient; at: lr, weight_decay, and t, the update's number from 1.
    update = function(p, g, state, at)
      local m = beta1 * state.m + (1 - beta1) * g
      local v = beta2 * state.v + (1 - beta2) * g * g
      local m_hat, v_hat = m / (1 - beta1 ^ at.t), v / (1 - beta2 ^ at.t)
      return p * (1 - at.lr * at.weight_decay) - at.lr * m_hat / (nn.sqrt(v_hat) + eps), { m = m, v = v }
    end,
  }
end

local arg = prun.shared_args { own = { true, "the optimizer above; false: prun.adamw" } }

local made = arg.own and adamw or prun.adamw

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = arg.heads,
                                context = arg.context },
  data      = prun.data.bytes { path = arg.data, batch = arg.batch },
  strategy  = { prun.zero3 { axis = "dp" } },
  optimizer = made { lr = arg.lr, weight_decay = 0.1, clip = 1.0 },
  micro     = arg.micro, steps = arg.steps, seed = arg.seed, dtype = arg.dtype, reduce = arg.reduce,
}
