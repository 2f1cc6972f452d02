-- Mistakes with views: --set case=NAME. views/commands.txt has prun's messages.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { case = "", tp = 1, cp = 1, micro = 1 }

-- x [b, 8, 16] of tokens.
local cases = {
  -- shapes
  reshape_count = function(x) return x:reshape { x.shape[1], 9, 16 } end,
  two_inferred = function(x) return x:reshape { -1, 8, -1 } end,
  not_divisible = function(x) return x:reshape { -1, 7, 5, 11 } end,
  zero = function(x) return x:reshape { x.shape[1], 0 } end,
  nine_dims = function(x) return x:reshape { -1, 1, 1, 1, 1, 1, 1, 8, 16 } end,
  no_dim = function(x) return x:transpose(1, 3) end,
  permute_twice = function(x) return x:permute { 0, 1, 1 } end,
  slice_outside = function(x) return x:slice(1, 4, 9) end,
  slice_empty = function(x) return x:slice(1, 3, 3) end,
  split_sum = function(x) return (x:split({ 3, 4 }, 1)) end,
  concat_shapes = function(x) return nn.concat({ x, x:slice(1, 0, 4) }, 2) end,
  concat_types = function(x, batch) return nn.concat({ x:flatten(1), batch.tokens }, 1) end,
  concat_nothing = function() return nn.concat({}, 1) end,
  stack_shapes = function(x) return nn.stack({ x, x:slice(1, 0, 4) }, 1) end,
  expand_size = function(x) return x:expand { -1, 16, 16 } end,
  expand_fewer = function(x) return x:expand { 8, 16 } end,
  squeeze_size = function(x) return x:squeeze(1) end,
  gather_floats = function(x) return x:gather(x) end,
  gather_shapes = function(x, batch) return x:flatten(0, 1):gather(batch.tokens) end,
  ids_outside = function(x, batch) return x:gather(batch.tokens) end,
  -- sizes beyond 2^31, 2^46 and 2^63
  huge_reshape = function(x) return x:reshape { 70368744177664, 70368744177664 } end,
  huge_expand = function(x) return x:unsqueeze(1):expand { -1, 70368744177664, -1, -1 } end,
  huge_pad = function(x) return x:pad(1, 70368744177664, 70368744177664) end,
  huge_size = function(x) return x:reshape { 9223372036854775807 } end,
  -- splits
  samples_mixed = function(x) return x:reshape { 2, -1, 16 } end,
  samples_sliced = function(x) return x:slice(0, 0, 1) end,
  samples_last = function(x) return nn.linear("last", x:permute { 1, 2, 0 }, 4) end,
  samples_read = function(x)
    return nn.attention(nn.linear("qkv", x:transpose(0, 1), 24, { blocks = { 8, 8, 8 } }), 2)
  end,
  columns_mixed = function(x) return nn.linear("up", x, 24):reshape { -1, 8, 3, 8 } end,
  columns_sliced = function(x) return nn.linear("up", x, 24):slice(2, 0, 12) end,
  columns_split_weight = function() return nn.parameter("up.weight", { 16, 24 }):reshape { 24, 16 } end,
  tokens_mixed = function(x) return x:reshape { -1, 2, 4, 16 } end,
  tokens_read = function(x) return nn.linear("last", x:transpose(1, 2), 4) end,
}

return prun.plan {
  mesh = prun.mesh { dp = prun.rest, cp = arg.cp, tp = arg.tp },
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 16 }, { "normal", 0.02 }))
    end)
    return nn.unit("layer", function()
      if not cases[arg.case] then error("no case " .. arg.case) end
      return prun.losses.mean_square(nn.linear("out", cases[arg.case](x, batch), 4))
    end)
  end,
  data = prun.data.bytes { path = "text/sample.txt", batch = 8, context = 8 },
  strategy = { prun.ddp { axis = "dp" }, prun.context_parallel { axis = "cp" },
               prun.tensor_parallel { axis = "tp", column = { "up" }, row = { "down" } } },
  optimizer = prun.sgd { lr = 0.1 },
  micro = arg.micro,
  steps = 4,
}
