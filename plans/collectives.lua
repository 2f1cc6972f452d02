-- Every collective, printed before and after on every rank.

local prun = require "prun"

return prun.program(function(r)
  local rank, ranks = r.rank, r.world

  -- All ranks receive the tensor of rank 0.
  local x = rank == 0 and prun.tensor { 1, 2, 3, 4, 5 } or prun.full({ 5 }, 0)
  prun.print("before broadcast on rank", rank, x)
  prun.broadcast(x, 0)
  prun.print("after broadcast on rank", rank, x)

  -- Rank 0 receives the sum over all ranks; the others keep their own tensor.
  x = prun.full({ 5 }, rank + 1)
  prun.print("before reduce on rank", rank, x)
  prun.reduce(x, "sum", 0)
  prun.print("after reduce on rank", rank, x)

  -- All ranks receive the sum over all ranks.
  x = prun.full({ 5 }, rank + 1)
  prun.print("before all_reduce on rank", rank, x)
  prun.all_reduce(x, "sum")
  prun.print("after all_reduce on rank", rank, x)

  -- Rank 0 receives the concatenation of all ranks' tensors.
  x = prun.full({ 5 }, rank + 1)
  prun.print("before gather on rank", rank, x)
  local all = prun.gather(x, 0)
  prun.print("after gather on rank", rank, all or "nothing")

  -- All ranks receive that concatenation.
  x = prun.full({ 5 }, rank + 1)
  prun.print("before all_gather on rank", rank, x)
  prun.print("after all_gather on rank", rank, prun.all_gather(x))

  -- Rank 0 has a piece for each rank: five times rank + 1.
  local pieces = {}
  for i = 1, 5 * ranks do pieces[i] = (i - 1) // 5 + 1 end
  x = rank == 0 and prun.tensor(pieces) or prun.full({ 5 * ranks }, 0)
  prun.print("before scatter on rank", rank, rank == 0 and x or "nothing")
  prun.print("after scatter on rank", rank, prun.scatter(x, 0))

  -- Every rank has a piece for each rank; each receives the sum of its pieces.
  pieces = {}
  for j = 0, ranks - 1 do
    pieces[#pieces + 1] = (rank + 1) ^ (j + 1)
    pieces[#pieces + 1] = (2 * (rank + 1)) ^ (j + 1)
  end
  x = prun.tensor(pieces)
  prun.print("before reduce_scatter on rank", rank, x)
  prun.print("after reduce_scatter on rank", rank, prun.reduce_scatter(x, "sum"))

  -- No rank continues before all ranks have arrived.
  prun.print("before barrier on rank", rank)
  prun.barrier()
  prun.print("after barrier on rank", rank)

  -- Tensors whose sizes are known only at run time: at most 6 elements per rank.
  local n = prun.random_int(1, 6)
  local mine = prun.iota(n, { start = 10 * rank, max = 6 })
  prun.print("before all_gather_v on rank", rank, mine)
  local everything = prun.all_gather_v(mine, n, { max = 6 })
  prun.print("after all_gather_v on rank", rank, everything)
end)
