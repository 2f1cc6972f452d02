-- Mistakes with nn.rotary and with norms; --set case=NAME selects one.
local prun = require "prun"
local plans = require "plans"
local nn = prun.nn

local cases = {}

function cases.rotary_of_an_odd_part(x) return nn.rotary(x, { size = 8, part = 5 }) end
function cases.rotary_dynamic(x) return nn.rotary(x, { size = 8, scaling = "dynamic" }) end
function cases.rotary_longrope_without_factors(x) return nn.rotary(x, { size = 8, scaling = "longrope" }) end
function cases.rotary_factors_of_another_scaling(x)
  return nn.rotary(x, { size = 8, scaling = "yarn",
                        factors = { 1, 2, 3, 4 } })
end
function cases.rotary_factors_too_few(x) return nn.rotary(x, { size = 8, scaling = "longrope", factors = { 1, 2 } }) end
function cases.rotary_yarn_without_a_range(x) return nn.rotary(x, { size = 8, scaling = "yarn", beta_fast = 1 }) end
function cases.rotary_positions_of_floats(x) return nn.rotary(x, { size = 8, positions = x }) end
function cases.rotary_positions_of_other_tokens(x, batch)
  return nn.rotary(x, { size = 8, positions = nn.slice(batch.tokens, 1, 0, 4) })
end
function cases.layernorm_option_misspelled(x) return nn.layernorm("ln", x, { biass = false }) end
function cases.layernorm_of_a_text(x) return nn.layernorm("ln", x, { affine = "no" }) end
function cases.rmsnorm_with_a_bias(x) return nn.rmsnorm("ln", x, { bias = true }) end

local name = prun.args { case = "" }.case
return plans.gpt {
  model = function(batch)
    local x = nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 8 }))
    return prun.losses.mean(cases[name](x, batch))
  end,
  data = prun.data.bytes { path = "text/sample.txt", batch = 8, context = 8 },
}
