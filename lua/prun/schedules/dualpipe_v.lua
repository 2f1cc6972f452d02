-- DualPipeV (DeepSeek-AI 2025, github.com/deepseek-ai/DualPipe): two chunks a rank, placed as a V as in zb_v. In the
-- steady state one microbatch's forward runs at the same time as another's backward, so that the all-to-alls of a
-- mixture of experts hide behind compute.

local prun = require "prun"

return prun.schedule("dualpipe_v", function(rank, ranks, micro)
  local f, b, waiting = { [0] = 0, 0 }, { [0] = 0, 0 }, {}
  -- The pattern is that of many microbatches; slots of missing microbatches are skipped.
  local many = math.max(micro, 2 * ranks)
  local function next_of(count, chunk)
    count[chunk] = count[chunk] + 1
    return count[chunk] <= micro and count[chunk] - 1 or nil
  end
  local function F(chunk)
    local i = next_of(f, chunk)
    return i and prun.forward(i, chunk)
  end
  local function B(chunk)
    local j = next_of(b, chunk)
    return j and prun.backward(j, chunk)
  end
  local function I(chunk)
    local j = next_of(b, chunk)
    if j then
      prun.backward_input(j, chunk)
      waiting[#waiting + 1] = { j, chunk }
    end
  end
  local function W()
    local first = table.remove(waiting, 1)
    if first then prun.backward_weight(first[1], first[2]) end
  end
  local function FB(forward_chunk, backward_chunk)
    local one, other = F(forward_chunk), B(backward_chunk)
    if one and other then prun.both(one, other) end
  end
  local before, behind = rank, ranks - rank - 1  -- ranks nearer to the V's ends, and to its tip

  for _ = 1, 2 * behind do F(0) end
  for _ = 0, before do F(0) F(1) end
  for _ = 1, behind do I(1) W() F(1) end
  for i = 1, many - 2 * ranks + before + 1 do
    if i == 1 and behind == 0 then F(0) B(1) else FB(0, 1) end  -- one after the other, as all ranks wait for the tip
    FB(1, 0)
  end
  for _ = 1, behind do B(1) FB(1, 0) end
  -- The second half of the last backwards leaves its weights to the end.
  local half = (before + 1) // 2
  for i = 0, before do
    if i > half or i == half and rank % 2 == 1 then I(1) else B(1) end
    if i >= half then I(0) else B(0) end
  end
  for _ = 1, behind do W() I(0) end
  while #waiting > 0 do W() end
end, { chunks = 2, placement = "v" })
