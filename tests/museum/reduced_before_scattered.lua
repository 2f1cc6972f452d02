-- mistake: all_reduce over the replicas before the reduce_scatter over the shards
-- happened: hybrid sharding summed whole gradients between hosts, then scattered them within: as
--   many times the bytes as there are shards
-- report: https://github.com/pytorch/pytorch/pull/84590
-- law: order of sums
-- others: a count of the bytes sent
-- ranks: 4
-- says: the gradients of 'head' are all-reduced over 'replicate' before they are scattered over
--   'dp': put the strategy that shards parameters before ddp in the list
local prun, museum = require "prun", require "museum"


local list = { prun.zero3 { axis = "dp" }, prun.ddp { axis = "replicate" } } -- here
if museum.wrong then list[1], list[2] = list[2], list[1] end
return museum.plan { mesh = prun.mesh { replicate = 2, dp = 2 }, strategy = list }
