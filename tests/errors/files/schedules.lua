-- Schedules with a mistake; --set case=NAME takes one of them.
local prun = require "prun"
local plans = require "plans"

local cases = {}

-- Backward needs what forward has made.
function cases.schedule_backward_first(rank, ranks, micro)
  for i = 0, micro - 1 do prun.backward(i) prun.forward(i) end
end

-- Rank 0 waits for a gradient that rank 1 cannot have made yet.
function cases.schedule_in_a_circle(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(rank == 0 and i or micro - 1 - i) end
  for i = 0, micro - 1 do prun.backward(i) end
end

-- The last microbatch never comes back.
function cases.schedule_leaves_out(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(i) end
  for i = 0, micro - 2 do prun.backward(i) end
end

-- Microbatches count from 0.
function cases.schedule_no_microbatch(rank, ranks, micro)
  for i = 1, micro do prun.forward(i) prun.backward(i) end
end

-- Each microbatch goes through once.
function cases.schedule_twice(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(i) prun.backward(i) end
  prun.forward(0)
end

-- The weights' half comes second.
function cases.schedule_weight_first(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(i) prun.backward_weight(i) prun.backward_input(i) end
end

local wrong = prun.schedule("wrong", cases[prun.args { case = "" }.case])

return plans.gpt {
  mesh     = prun.mesh { pp = 2 },
  strategy = { prun.pipeline { axis = "pp", schedule = wrong } },
  micro    = 2,
}
