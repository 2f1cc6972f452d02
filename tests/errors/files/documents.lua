-- Invalid plans with packed documents (pack = "documents"); `--set case=NAME` selects a case.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { case = "" }

local cases = {}

local function lines(options)
  options.path, options.batch, options.pack = "text/sample.txt", 4, options.pack or "documents"
  options.eot = options.eot or 10
  return prun.data.bytes(options)
end

local gpt = prun.models.gpt { vocab = 256, layers = 1, width = 8, heads = 1, context = 64 }

local function plan(data, more)
  more = more or {}
  return prun.plan {
    mesh = prun.mesh { dp = prun.world }, model = more.model or gpt, data = data, eval = more.eval,
    strategy = { prun.ddp {} }, optimizer = prun.sgd {},
  }
end

function cases.longer_than_the_capacity()
  local small = prun.models.gpt { vocab = 256, layers = 1, width = 8, heads = 1, context = 32 }
  return plan(lines { capacity = 32 }, { model = small })
end
function cases.no_document_ends() return plan(lines { eot = 0 }) end
function cases.eot_beyond_vocab() return plan(lines { eot = 256 }) end
function cases.capacity_and_context_differ() return plan(lines { capacity = 128 }) end
function cases.no_eot() return plan(prun.data.bytes { path = "text/sample.txt", batch = 4, pack = "documents" }) end
function cases.eot_without_pack() return plan(prun.data.bytes { path = "text/sample.txt", batch = 4, eot = 10 }) end
function cases.long_without_pack()
  return plan(prun.data.bytes { path = "text/sample.txt", batch = 4, long = "split" })
end
function cases.context_with_pack() return plan(lines { context = 64 }) end
function cases.document_end_with_pack() return plan(lines { document_end = 10 }) end
function cases.no_such_rule()
  return plan(prun.data.bytes { path = "text/sample.txt", batch = 4, pack = "documents", eot = 10, long = "cut" })
end
function cases.all_batches() return plan(lines {}, { eval = prun.eval { every = 1, batches = "all" } }) end
function cases.few_positions()
  local function model(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 8 })) +
        nn.embedding(batch.positions, nn.parameter("position.weight", { 16, 8 }))
    end)
    return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets)
  end
  return plan(lines { capacity = 128 }, { model = model })
end
function cases.arrays_have_no_documents()
  return plan(prun.data.arrays { x = "tests/errors/files/x.npy", batch = 2 }, {
    model = function(batch)
      local x = nn.linear("up", batch.x, 6)
      return prun.losses.mean(nn.attention(x, 1, { documents = batch.documents }))
    end,
  })
end
function cases.text_without_pack()
  return plan(prun.data.bytes { path = "text/sample.txt", batch = 4 }, {
    model = prun.model("positions", { context = 8 }, function(_, batch)
      return prun.losses.cross_entropy(nn.linear("up", nn.embedding(batch.positions, nn.parameter("w", { 8, 8 })), 256),
        batch.targets)
    end) {},
  })
end
function cases.arrays_do_not_pack()
  return plan(prun.data.arrays { x = "tests/errors/files/x.npy", batch = 2, pack = "documents" })
end

local function divided(data, model)
  return prun.plan {
    mesh = prun.mesh { cp = prun.world }, model = model or gpt, data = data, optimizer = prun.sgd {},
    strategy = { prun.context_parallel { share = "documents" } },
  }
end
function cases.share_without_documents() return divided(prun.data.bytes { path = "text/sample.txt", batch = 4 }) end
function cases.share_and_dropout()
  local options = { vocab = 256, layers = 1, width = 8, heads = 1, context = 64, dropout = 0.1 }
  return divided(lines {}, prun.models.gpt(options))
end
function cases.share_and_whole_streams()
  return divided(lines { capacity = 64 }, function(batch)
    local x = nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 8 }))
    local y = nn.linear("out", nn.attention(nn.linear("qkv", x, 24), 1), 256)
    return prun.losses.cross_entropy(y, batch.targets)
  end)
end
function cases.share_and_a_window()
  return divided(lines { capacity = 64 }, function(batch)
    local x = nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 8 }))
    local seen = nn.attention(nn.linear("qkv", x, 24), 1, { documents = batch.documents, window = 4 })
    return prun.losses.cross_entropy(nn.linear("out", seen, 256), batch.targets)
  end)
end

return cases[arg.case]()
