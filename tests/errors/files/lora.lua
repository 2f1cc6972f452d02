-- Mistakes in adapters; --set case=NAME selects one.
local prun = require "prun"
local plans = require "plans"
local nn = prun.nn

local given = {
  nothing = { match = "block*.qvk" },
  no_unit = { match = "qkv" },
  second_alternative = { match = "*.qkv|blok*.proj" },
  everything = { match = "*" },
  a_norm = { match = "block*" },
  embedding = { match = "embed*" },
  no_match = { rank = 4 },
  empty_alternative = { match = "*.qkv|" },
  rank_0 = { match = "*.qkv", rank = 0 },
  dropout_1 = { match = "*.qkv", dropout = 1 },
  r = { match = "*.qkv", r = 4 },
  lora_alpha = { match = "*.qkv", lora_alpha = 4 },
  lora_dropout = { match = "*.qkv", lora_dropout = 0.1 },
  target_modules = { target_modules = { "c_attn" } },
  modules_to_save = { match = "*.qkv", modules_to_save = { "head" } },
  train_nothing = { match = "*.qkv", train = "haed*" },
  train_adapted = { match = "*.qkv", train = "block1*" },
}

local function no_linear(batch)
  return nn.unit("only", function() return prun.losses.mean_square(nn.layernorm("ln", batch.x)) end)
end

local cases = {
  tied = function()
    return plans.gpt {
      model = prun.models.gpt { vocab = 256, layers = 2, width = 32, heads = 2, context = 16, tied = true },
      lora = prun.lora { match = "embed.logits" },
    }
  end,
  experts = function()
    return plans.gpt {
      model = prun.models.moe { vocab = 256, layers = 1, width = 32, heads = 2, context = 16, experts = 2 },
      lora = prun.lora { match = "*.up" },
    }
  end,
  no_linear = function() return plans.mlp { model = no_linear, lora = prun.lora { match = "*.up" } } end,
  frozen_too = function() return plans.gpt { lora = prun.lora { match = "*.qkv" }, frozen = "embed*" } end,
  a_table = function() return plans.gpt { lora = { match = "*.qkv" } } end,
  in_the_optimizer = function() return plans.gpt { optimizer = prun.adamw { lora = true } } end,
}

local name = prun.args { case = "" }.case
return cases[name] and cases[name]() or plans.gpt { lora = prun.lora(given[name]) }
