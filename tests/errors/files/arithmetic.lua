-- Mistakes with functions of elements, reductions and products; --set case=NAME selects one.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { case = "", dp = 0, tp = 0, cp = 0, micro = 1 }
local cases = {}

function cases.shapes_do_not_broadcast(x)
  local gain = nn.parameter("gain", { 12 })
  return x * gain
end
function cases.column_of_other_rows(x)
  return nn.maximum(x, nn.parameter("floor", { 5, 1 }))
end
function cases.ids_in_a_function(_, batch) return nn.exp(batch.tokens) end
function cases.ids_in_an_operator(_, batch) return batch.tokens * 0.5 end
function cases.comparison_as_a_number(x) return nn.where(x, x == x, 0) end
function cases.comparison_by_an_operator(x) return nn.where(x <= 1, x, 0) end
function cases.boolean_operand(x) return x * true end
function cases.condition_of_a_number(x) return nn.where(1, x, 0) end
function cases.numbers_alone() return nn.maximum(1, 2) end
function cases.no_such_dim(x) return nn.sum(x, 3) end
function cases.dim_given_twice(x) return nn.mean(x, { 2, -1 }) end
function cases.no_dims(x) return nn.max(x, {}) end
function cases.matmul_of_other_ranks(x) return nn.matmul(nn.slice(x, 0, 0, 3), x) end
function cases.matmul_of_other_sizes(x) return nn.matmul(nn.linear("wide", x, 12), x) end
function cases.einsum_without_result(x) return nn.einsum("btd,bsd", x, x) end
function cases.einsum_with_dots(x) return nn.einsum("...btd,e...->...b", x, nn.sum(x, { 0, 1 })) end
function cases.einsum_letter_twice(x) return nn.einsum("btt,bsd->bsd", x, x) end
function cases.einsum_letter_of_nothing(x) return nn.einsum("btd,bsd->bts_", x, x) end
function cases.einsum_letter_of_the_result(x) return nn.einsum("btd,bsd->btq", x, x) end
function cases.einsum_of_other_dims(x) return nn.einsum("bt,bsd->bsd", x, x) end
function cases.einsum_of_other_sizes(x) return nn.einsum("btd,bsd->bts", x, nn.linear("wide", x, 12)) end
function cases.function_misspelled(x) return nn.sigmiod(x) end
function cases.samples_averaged(x) return x - nn.mean(x, 0) end
function cases.samples_and_a_parameter(x) return x + nn.parameter("noise", { 4, 1, 1 }) end
function cases.tokens_cumulated(x) return nn.cumsum(x, 1) end
function cases.split_parameter_of_another_layer(x) return x * nn.parameter("up.gain", { 8 }) end
function cases.products_of_split_columns(x)
  local y = nn.linear("up", x, 16)
  return nn.linear("down", y * nn.parameter("gain", { 16 }), 8)
end

local axes, strategies = {}, {}
for _, axis in ipairs { "dp", "tp", "cp" } do
  if arg[axis] > 0 then axes[#axes + 1] = { axis, arg[axis] } end
end
if arg.dp > 0 then strategies[#strategies + 1] = prun.ddp { axis = "dp" } end
if arg.tp > 0 then strategies[#strategies + 1] = prun.tensor_parallel { axis = "tp" } end
if arg.cp > 0 then strategies[#strategies + 1] = prun.context_parallel { axis = "cp" } end

return prun.plan {
  mesh = prun.mesh(axes),
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 8 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block", function() return cases[arg.case](x, batch) end)
    return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets)
  end,
  data = prun.data.bytes { path = "text/sample.txt", batch = 4, context = 8 },
  strategy = strategies,
  optimizer = prun.sgd { lr = 0.1 },
  micro = arg.micro,
  steps = 1,
}
