-- The architecture of Mixtral (Jiang et al. 2024): Llama's blocks with a mixture of SwiGLU experts instead of the MLP.
-- Each token goes to its top-k experts, weighted by the softmax over these k router logits. Units as in gpt.lua. The
-- loss includes transformers' balancing loss of all layers (router_aux_loss_coef is `aux`).

local prun = require "prun"
local parts = require "prun.models.llama_parts"
local nn = prun.nn

return prun.model("mixtral", parts.options {
  hidden = { 0, "size inside an expert; 0: 7/2 of the width, rounded up to a multiple of 8", least = 0 },
  experts = { 8, "experts in a block", least = 1 },
  choices = { 2, "experts that each token goes to", least = 1 },
  capacity = { math.huge, "room of an expert as a multiple of its even share; inf: enough for all", above = 0 },
  dropless = { false, "rounds of the capacity for choices beyond it, instead of dropping them" },
  aux = { 0.001, "weight of the load-balancing loss", least = 0 },
  base = { 1e6, "of the rotary angles", least = 1 },
}, function(opt, batch)
  local hidden = opt.hidden > 0 and opt.hidden or math.ceil(opt.width * 7 / 16) * 8

  local loads = opt.aux > 0 and {} or nil
  local x = parts.embed(opt, batch)
  for i = 0, opt.layers - 1 do
    x = nn.unit("block" .. i, function()
      local mixed = parts.attend("mixtral", opt, i, x, batch)
      return mixed + nn.moe("moe", parts.norm(opt, "ln2", mixed), {
        experts = opt.experts, choices = opt.choices, aux = 0, loads = loads, hidden = hidden, gated = true,
        capacity = opt.capacity, dropless = opt.dropless, documents = rawget(batch, "documents"),
        init = { "normal", 0.02 }, down_init = parts.residual(opt),
      })
    end)
  end
  local loss = parts.head(opt, x, batch)
  if not loads then return loss end
  return loss + opt.aux * prun.losses.balance(loads):named "balance"
end)
