-- mistake: an embedding table with fewer rows than the tokenizer has ids
-- happened: the table had 10,000 rows by default and the tokenizer about 40,000 ids; training
--   failed at the first caption with a rare id
-- report: https://github.com/lucidrains/DALLE-pytorch/issues/56
-- law: ranges
-- others: a check of each id on the device, at the batch that contains it
-- ranks: 2
-- says: data: plans/text/sample.txt has the id 122 at position 29970 (byte 29970), and the table
--   'embed.token.weight' has 122 rows (this file): the largest id of the data is 122, so 123
--   are needed
local prun, museum = require "prun", require "museum"
local nn = prun.nn

local rows = museum.wrong and 122 or 256

return museum.plan {
  strategy = { prun.ddp { axis = "dp" } },
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { rows, 16 }, { "normal", 0.02 }))
    end)
    return nn.unit("head", function() return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets) end)
  end,
  data = prun.data.bytes { path = "text/sample.txt", batch = 8, context = 16 }, -- here
}
