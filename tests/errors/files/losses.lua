-- Models whose losses or metrics are mistakes; --set case=NAME selects one.
local prun = require "prun"
local nn, losses = prun.nn, prun.losses

local cases = {}

function cases.constant_added(batch)
  return losses.mean(nn.linear("a", batch.x, 4)) + 1
end

function cases.factor_is_a_tensor(batch)
  local y = nn.linear("a", batch.x, 4)
  return y * losses.mean(y)
end

function cases.tensor_added(batch)
  local y = nn.linear("a", batch.x, 4)
  return losses.mse(y, batch.y) + y
end

function cases.not_trained(batch)
  local y = nn.linear("a", batch.x, 4)
  return losses.mse(y, batch.y) +
    0.5 * losses.mean_square(batch.x)
end

function cases.nothing_left(batch)
  return 0 * losses.mean(nn.linear("a", batch.x, 4))
end

function cases.named_twice(batch)
  local y = nn.linear("a", batch.x, 4)
  return losses.mse(y, batch.y):named "one" +
    losses.mean_square(y):named "one"
end

function cases.named_like_a_field(batch)
  return losses.mean(nn.linear("a", batch.x, 4)):named "grad_norm"
end

function cases.name_with_a_space(batch)
  return losses.mean(nn.linear("a", batch.x, 4)):named "my loss"
end

function cases.no_such_method(batch)
  return losses.mean(nn.linear("a", batch.x, 4)):name "mine"
end

function cases.pattern_matches_nothing(batch)
  return losses.mean(nn.linear("a", batch.x, 4)) +
    losses.l2 "*.weigth"
end

function cases.metric_is_a_tensor(batch)
  local y = nn.linear("a", batch.x, 4)
  return losses.mean(y), { level = y }
end

function cases.metrics_are_no_table(batch)
  local y = nn.linear("a", batch.x, 4)
  return losses.mean(y), losses.mean(y)
end

function cases.balance_of_nothing(batch)
  return losses.mean(nn.linear("a", batch.x, 4)) + losses.balance {}
end

function cases.temperature_of_0(batch)
  local y = nn.linear("a", batch.x, 4)
  return losses.kl(y, y, { temperature = 0 })
end

function cases.accuracy_of_numbers(batch)
  local y = nn.linear("a", batch.x, 4)
  return losses.mean(y), { accuracy = prun.metrics.accuracy(y, batch.y) }
end

function cases.seventeen_names(batch)
  local y, metrics = nn.linear("a", batch.x, 4), {}
  for i = 1, 17 do metrics["m" .. i] = prun.metrics.mean(y) end
  return losses.mean(y), metrics
end

function cases.sixty_one_parts(batch)
  local y = nn.linear("a", batch.x, 4)
  local sum = losses.mean(y)
  for _ = 1, 60 do sum = sum + losses.mean(y) end
  return sum:named "sum"
end

function cases.compared(batch)
  local y = nn.linear("a", batch.x, 4)
  return losses.mean(y) < losses.mse(y, batch.y) and losses.mean(y) or losses.mse(y, batch.y)
end

function cases.divided_by_0(batch)
  return losses.mean(nn.linear("a", batch.x, 4)) / 0
end

return prun.plan {
  mesh = prun.mesh { dp = 1 }, model = cases[prun.args { case = "" }.case],
  data = prun.data.random { batch = 2, inputs = 8, outputs = 4 }, optimizer = prun.sgd { lr = 0.1 },
}
