-- mistake: reductions over two axes in a different order on every other rank
-- happened: ranks issued collectives of two groups in different orders, so each half waited for the
--   other
-- report: https://github.com/meta-pytorch/torchrec/pull/4149
-- law: no wait cycle
-- others: a watchdog, after its timeout
-- ranks: 4
-- says: wait cycle across ranks: these wait for each other
local prun, museum = require "prun", require "museum"


return prun.program(function(r)
  local x, y = prun.full({ 4 }, 1), prun.full({ 4 }, 2)
  local function rows() prun.all_reduce(x, "sum", { axis = "tp" }) end -- here
  local function columns() prun.all_reduce(y, "sum", { axis = "dp" }) end
  if museum.wrong and (r.dp + r.tp) % 2 == 1 then
    columns()
    rows()
  else
    rows()
    columns()
  end
  prun.print(x, y)
end, { mesh = prun.mesh { dp = 2, tp = 2 } })
