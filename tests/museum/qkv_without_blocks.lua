-- mistake: column split of a fused QKV weight as if it were one block
-- happened: the fused weight of q, k and v was split evenly: the first rank had q and a part of k,
--   the second the remainder
-- report: https://github.com/NVIDIA-NeMo/Automodel/pull/1324
-- law: shards
-- others: a parity run
-- ranks: 2
-- says: placement: attention (block0 forward, compute, here) takes 48 columns for whole heads of q,
--   k and v, and over tp they are each rank's part of dim 2: the layer that makes them needs
--   blocks = { 32, 32, 32 }, to cut each by itself; linear (block0 forward, compute, this file)
--   wrote it
local prun, museum = require "prun", require "museum"


local nn, width = prun.nn, 32

local function model(batch)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, width }, { "normal", 0.02 }))
  end)
  x = nn.unit("block0", function()
    local qkv = nn.linear("qkv", x, 3 * width, { blocks = museum.wrong and { 3 * width } or nil })
    return x + nn.linear("proj", nn.attention(qkv, 4), width) -- here
  end)
  return nn.unit("head", function() return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets) end)
end

return museum.plan {
  mesh = prun.mesh { tp = 2 }, model = model, data = museum.text, strategy = { prun.tensor_parallel {} },
}
