-- Schedules with a mistake; --set case=NAME selects one.
local prun = require "prun"
local plans = require "plans"

local cases = {}

-- Backward needs the results of forward.
function cases.schedule_backward_first(rank, ranks, micro)
  for i = 0, micro - 1 do prun.backward(i) prun.forward(i) end
end

-- Rank 0 waits for a gradient that rank 1 cannot have made yet.
function cases.schedule_in_a_circle(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(rank == 0 and i or micro - 1 - i) end
  for i = 0, micro - 1 do prun.backward(i) end
end

-- The last microbatch has no backward.
function cases.schedule_leaves_out(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(i) end
  for i = 0, micro - 2 do prun.backward(i) end
end

-- Microbatches are numbered from 0.
function cases.schedule_no_microbatch(rank, ranks, micro)
  for i = 1, micro do prun.forward(i) prun.backward(i) end
end

-- Each microbatch runs once.
function cases.schedule_twice(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(i) prun.backward(i) end
  prun.forward(0)
end

-- The weight half of backward comes second.
function cases.schedule_weight_first(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(i) prun.backward_weight(i) prun.backward_input(i) end
end

-- A rank has two stages and runs the later one first.
function cases.schedule_chunks_turned(rank, ranks, micro)
  for i = 0, micro - 1 do prun.forward(i, 1) prun.forward(i, 0) end
  for i = 0, micro - 1 do prun.backward(i, 1) prun.backward(i, 0) end
end

-- Backward of the rank's earlier stage comes first.
function cases.schedule_chunks_turned_backward(rank, ranks, micro)
  for i = 0, micro - 1 do
    prun.forward(i, 0) prun.forward(i, 1) prun.backward_input(i, 0) prun.backward(i, 1) prun.backward_weight(i, 0)
  end
end

-- Two forwards would compete for the same device.
function cases.both_of_one_kind(rank, ranks, micro)
  prun.both(prun.forward(0), prun.forward(1))
  for i = 0, micro - 1 do prun.backward(i) end
end

-- Backward needs forward of its own microbatch.
function cases.both_of_one_microbatch(rank, ranks, micro)
  for i = 0, micro - 1 do prun.both(prun.forward(i), prun.backward(i)) end
end

-- A slot has been recorded in between.
function cases.both_not_adjacent(rank, ranks, micro)
  local first = prun.forward(0)
  prun.forward(1)
  prun.both(first, prun.backward(0))
  prun.backward(1)
end

-- A slot runs with one other.
function cases.both_of_three(rank, ranks, micro)
  prun.forward(0)
  local one, other = prun.backward(0), prun.forward(1)
  prun.both(one, other)
  prun.both(other, prun.backward(1))
end

-- A good order, which the strategy may not fit.
function cases.both(rank, ranks, micro)
  prun.forward(0)
  prun.both(prun.forward(1), prun.backward(0))
  prun.backward(1)
end

-- The numbers are not slots.
function cases.both_of_numbers(rank, ranks, micro)
  prun.both(0, 1)
end

local arg = prun.args { case = "", chunks = 1, placement = "round", zero3 = false }
local wrong = prun.schedule("wrong", cases[arg.case], { chunks = arg.chunks, placement = arg.placement })

return plans.gpt {
  mesh     = prun.mesh { pp = arg.zero3 and 1 or prun.world, dp = prun.rest },
  strategy = { prun.pipeline { axis = "pp", schedule = wrong }, arg.zero3 and prun.zero3 {} or nil },
  micro    = 2,
}
