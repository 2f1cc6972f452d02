-- Mistakes in optimizers of a plan's own, Muon and Adafactor; `case` selects one.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { case = "none" }

local function sgd(p, g, _, at) return p - at.lr * g end
local function with_m(p, g, state, at)
  local m = 0.9 * state.m + g
  return p - at.lr * m, { m = m }
end

local cases = {
  none = { name = "mine", update = sgd },
  reduces = { name = "mine", update = function(p, g, _, at) return p - at.lr * nn.sum(g, 0) end },
  multiplies = { name = "mine", update = function(p, g, _, at) return p - at.lr * nn.matmul(g, p) end },
  activates = { name = "mine", update = function(p, g, _, at) return p - at.lr * nn.gelu(g) end },
  unknown_state = { name = "mine", state = { "m" }, update = function(p, g, state) return p - state.v * g end },
  unknown_setting = { name = "mine", update = function(p, g, _, at) return p - at.rate * g end },
  no_new_state = { name = "mine", state = { "m" }, update = function(p, g, _, at) return p - at.lr * g, {} end },
  no_states = { name = "mine", state = { "m" }, update = sgd },
  unlisted_state = { name = "mine", state = { "m" }, update = function(p, g, state, at)
    return p - at.lr * g, { m = state.m, n = g }
  end },
  number_state = { name = "mine", state = { "m" }, update = function(p, g, _, at) return p - at.lr * g, { m = 0 } end },
  returns_nothing = { name = "mine", update = function() end },
  compares = { name = "mine", update = function(p, g) return p < g and p or g end },
  states_first = { name = "mine", state = { "m" }, update = function(p, g, state, at)
    return { m = state.m }, p - at.lr * g
  end },
  makes_parameters = { name = "mine", update = function(p) return p + nn.parameter("w", { 1 }) end },
  taken_name = { name = "adamw", state = { "m" }, update = with_m },
  name_with_dot = { name = "my.sgd", update = sgd },
  no_update = { name = "mine" },
  no_name = { update = sgd },
  state_twice = { name = "mine", state = { "m", "m" }, update = with_m },
  many_states = { name = "mine", state = { "a", "b", "c", "d", "e" }, update = with_m },
  unknown_option = { name = "mine", states = { "m" }, update = with_m },
}

local adamw = prun.adamw { lr = 1e-3 }
local in_groups = {
  muon_of_biases = function() return prun.muon { lr = 0.02 } end,
  second_muon = function() return prun.groups { { dims = 1, optimizer = prun.muon {} }, prun.muon {} } end,
  clip_in_group = function()
    return prun.groups { { dims = 1, optimizer = prun.adamw { clip = 1 } }, prun.muon {} }
  end,
  curve_in_group = function()
    return prun.groups { { dims = 1, optimizer = prun.adamw { lr = prun.cosine { lr = 1e-3 } } }, prun.muon {} }
  end,
  groups_in_group = function()
    return prun.groups { { dims = 1, optimizer = prun.groups { { dims = 1, decay = 0 }, adamw } }, prun.muon {} }
  end,
  two_coefficients = function() return prun.muon { coefficients = { 3, -4 } } end,
  growing_decay = function() return prun.adafactor { beta2_decay = 0.8 } end,
  one_eps = function() return prun.adafactor { eps = { 1e-3 } } end,
  low_bound = function() return prun.adafactor { d = 0.5 } end,
  offloaded_adafactor = function() return prun.adafactor {} end,
  offloaded_muon = function()
    return prun.groups { { dims = 1, optimizer = adamw }, prun.muon {} }
  end,
  muon_of_a_table = function() return prun.groups { { dims = 1, optimizer = adamw }, prun.muon {} } end,
  muon_of_a_tied_table = function()
    return prun.groups { { match = "*.position.*|*.bias|*.ln*", optimizer = adamw }, prun.muon {} }
  end,
  betas = function() return prun.adafactor { betas = { 0.9, 0.999 } } end,
  decay_rate = function() return prun.adafactor { decay_rate = -0.8 } end,
  clip_threshold = function() return prun.adafactor { clip_threshold = 1 } end,
  scale_parameter = function() return prun.adafactor { scale_parameter = false } end,
  relative_step = function() return prun.adafactor { relative_step = true } end,
  warmup_init = function() return prun.adafactor { warmup_init = true } end,
  average = function() return prun.ema { decay = 0.999 } end,
}
local optimizer = in_groups[arg.case] and in_groups[arg.case]() or prun.optimizer(cases[arg.case])

local has_table = arg.case:find "table"
return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = has_table and prun.models.gpt { vocab = 256, layers = 1, width = 16, heads = 2, context = 8,
                                          tied = arg.case == "muon_of_a_tied_table" } or prun.models.mlp {},
  data = has_table and prun.data.bytes { path = "../../../plans/text/sample.txt", batch = 4 } or
         prun.data.random { batch = 4 },
  strategy = { prun.ddp { axis = "dp", offload = arg.case:find "^offloaded" and "optimizer" or nil } },
  optimizer = optimizer, steps = 2,
}
