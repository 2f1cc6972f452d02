-- A small GPT whose optimizer has no groups, groups with the optimizer's own settings, groups of their own, Muon for the
-- matrices of its blocks, or Adafactor; its first layers may be frozen. groups_test.py and optimizers_test.py compare them.

local prun = require "prun"

local arg = prun.args {
  groups = { "none", "of the optimizer", choices = { "none", "equal", "own", "muon", "adafactor" } },
  strategy = "single", dtype = "f32", steps = 4, frozen = "", from = "", layers = 2, width = 48, lr = 1e-3,
}

local optimizer = prun.adamw { lr = arg.lr, weight_decay = 0.1, clip = 0.5 }
if arg.groups == "equal" then
  optimizer = prun.groups { { match = "*.bias", decay = 0.1 }, { dims = 2, lr = 1 }, { match = "*" }, optimizer }
elseif arg.groups == "own" then
  optimizer = prun.groups {
    { match = "*.bias|*.ln*", decay = 0 }, { match = "*.up.weight", lr = 0.1, decay = 2 }, { dims = 1 },
    { match = "embed*", lr = 20 }, optimizer,
  }
elseif arg.groups == "muon" then
  optimizer = prun.groups {
    { match = "embed*|head*", optimizer = prun.adamw { lr = arg.lr } },
    { dims = 1, decay = 0, optimizer = prun.adamw { lr = arg.lr } },
    prun.muon { lr = 10 * arg.lr, clip = 0.5 },
  }
elseif arg.groups == "adafactor" then
  optimizer = prun.groups { { match = "embed*", lr = 2 }, prun.adafactor { lr = 10 * arg.lr, clip = 0.5 } }
end

return prun.plan {
  mesh      = prun.mesh(arg.strategy == "single" and {} or { dp = prun.world }),
  model     = prun.models.gpt { vocab = 256, layers = arg.layers, width = arg.width, heads = 4, context = 16 },
  init      = arg.from ~= "" and prun.init.from { path = arg.from, missing = "initialise" } or nil,
  data      = prun.data.bytes { path = "../../plans/text/sample.txt", batch = 12 },
  strategy  = arg.strategy ~= "single" and { prun[arg.strategy] { axis = "dp" } } or {},
  optimizer = optimizer,
  frozen    = arg.frozen ~= "" and arg.frozen or nil,
  steps     = arg.steps,
  dtype     = arg.dtype,
}
