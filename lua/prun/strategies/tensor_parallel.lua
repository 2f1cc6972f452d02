-- Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"): the weights of a layer are split over ranks. A column layer
-- splits its outputs, a row layer its inputs, so that a column layer followed by a row layer needs one all-reduce;
-- embedding and logits split the vocabulary. With `sequence`, norms and residuals process a part of the tokens on each
-- rank (Korthikanti et al. 2022, "Reducing Activation Recomputation").
--
-- The collectives of activations follow from these placements.

local prun = require "prun"

return prun.strategy("tensor_parallel", {
  axis = { "tp", "mesh axis over which weights are split" },
  column = { { "qkv", "q", "k", "v", "up", "gate", "logits", "moe.shared.gate", "moe.shared.up" },
             "layers whose outputs are split" },
  row = { { "proj", "down", "moe.shared.down" }, "layers whose inputs are split" },
  rows = { { "token" }, "embeddings whose rows are split" },
  expert_column = { { "moe.gate", "moe.up" }, "layers of experts of which each is split along its outputs" },
  expert_row = { { "moe.down" }, "layers of experts of which each is split along its inputs" },
  sequence = { false, "split tokens between the layers" },
}, function(unit, opt)
  for _, layer in ipairs(unit:find(opt.column)) do layer:place { [opt.axis] = "S(1)" } end
  for _, layer in ipairs(unit:find(opt.row)) do layer:place { [opt.axis] = "S(0)" } end
  for _, layer in ipairs(unit:find(opt.rows)) do layer:place { [opt.axis] = "S(0)" } end
  for _, layer in ipairs(unit:find(opt.expert_column)) do layer:place { [opt.axis] = "S(2)" } end
  for _, layer in ipairs(unit:find(opt.expert_row)) do layer:place { [opt.axis] = "S(1)" } end
  if opt.sequence then unit.activations:place { [opt.axis] = "S(1)" } end
end, { splits = "nothing" })
