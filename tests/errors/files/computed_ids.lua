-- Mistakes with ids that a model computes, and with products of samples; --set case=NAME selects one.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { case = "", micro = 1 }
local cases = {}

local function looked_up(ids) return nn.embedding(ids, nn.parameter("places", { 8, 8 })) end

function cases.in_a_linear_layer(_, batch) return nn.linear("up", batch.tokens * 2, 8) end
function cases.factor(_, batch) return looked_up(nn.minimum(batch.tokens * 0.5, 7)) end
function cases.above_the_table(_, batch) return looked_up(nn.cumsum(nn.not_equal(batch.tokens, 0), 1)) end
function cases.below_the_table(_, batch) return looked_up(nn.minimum(batch.tokens - 1, 7)) end
function cases.of_another_table(_, batch) return looked_up(nn.pad(nn.slice(batch.tokens, 1, 1), 1, 0, 1)) end
function cases.beyond_the_rows(x) return nn.gather(x, nn.argmax(x, 2) + 1) end
function cases.of_floats(x) return nn.exp(nn.argmax(x, 2)) end
function cases.relative_to_other_tokens(x) return x + nn.relative(nn.parameter("distances", { 14, 8 }), 8, 8) end
function cases.ignored(_, batch) return looked_up(nn.minimum(nn.reshape(batch.targets, { -1, 8 }) * 1, 7)) end
function cases.squares(_, batch)
  local square = batch.tokens * batch.tokens
  return looked_up(nn.minimum(square * square, 7))  -- beyond 2^24, where f32 does not count
end
function cases.products_of_samples(x)
  local first, last = nn.squeeze(nn.slice(x, 1, 0, 1), 1), nn.squeeze(nn.slice(x, 1, 7), 1)
  local products = nn.matmul(first, last, { transpose_b = true })
  return x + nn.unsqueeze(nn.sum(products, 1, { keep = true }), 1)
end

return prun.plan {
  mesh = prun.mesh { dp = prun.rest },
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 8 }, { "normal", 0.5 }))
    end)
    x = nn.unit("block", function() return cases[arg.case](x, batch) end)
    return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets, { ignore = 3 })
  end,
  data = prun.data.bytes { path = "text/sample.txt", batch = 4, context = 8 },
  strategy = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro = arg.micro,
  steps = 1,
}
