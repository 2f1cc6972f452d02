-- Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024): keys and values come from a small latent vector; a
-- part of each head is rotated by the position, and that of the keys is the same for all heads.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { folder = ".", batch = 8, vocab = 48, width = 32, heads = 4, latent = 16, layers = 2,
                        tokens = 12, dtype = "f32" }
local plain, turned, value = 8, 4, 6  -- elements of a head: not rotated, rotated, of v

local function by_heads(x, size) return x:reshape { -1, arg.tokens, arg.heads, size } end
local function rotated(x) return nn.rotary(x, { size = turned }) end

local function attention(x)
  local heads, size = arg.heads, plain + turned
  local q, q_turned = nn.split(by_heads(nn.linear("q", x, heads * size), size), { plain, turned }, -1)
  q = nn.concat({ q, by_heads(rotated(q_turned:flatten(2)), turned) }, -1):flatten(2)
  local latent, k_turned = nn.split(nn.linear("down_kv", x, arg.latent + turned), { arg.latent, turned }, -1)
  local up = nn.linear("up_kv", nn.rmsnorm("latent_norm", latent), heads * (plain + value), { bias = false })
  local k, v = nn.split(by_heads(up, plain + value), { plain, value }, -1)
  k = nn.concat({ k, rotated(k_turned):unsqueeze(2):expand { -1, -1, heads, -1 } }, -1):flatten(2)
  return nn.linear("proj", nn.attention { q = q, k = k, v = v:flatten(2), heads = heads }, arg.width)
end

return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.sentences, nn.parameter("words.weight", { arg.vocab, arg.width }, { "normal", 0.02 }))
    end)
    for i = 0, arg.layers - 1 do
      x = nn.unit("block" .. i, function() return x + attention(nn.rmsnorm("norm", x)) end)
    end
    local logits = nn.unit("head", function() return nn.linear("logits", nn.rmsnorm("norm", x), arg.vocab) end)
    return prun.losses.cross_entropy(logits, batch.labels, { ignore = -100 })
  end,
  data = prun.data.arrays { batch = arg.batch, inputs = { sentences = arg.folder .. "/sentences.npy",
                                                  labels = arg.folder .. "/labels.npy" } },
  strategy = { prun.zero3 { axis = "dp" } }, optimizer = prun.sgd { lr = 0.1 }, steps = 10, dtype = arg.dtype,
}
