-- Data that cannot be trained on; `--set case=NAME` takes one.
local prun = require "prun"
local arg = prun.args { case = "" }

local cases = {}

local function text(options)
  options.path, options.batch, options.context = options.path or "text/sample.txt", 4, 8
  return prun.data.bytes(options)
end
local function arrays(options)
  options.batch = 4
  return prun.data.arrays(options)
end

local function plan(data, eval)
  return prun.plan {
    mesh  = prun.mesh { dp = prun.world },
    model = data.kind == "arrays" and prun.models.mlp {}
      or prun.models.gpt { vocab = 256, layers = 1, width = 8, heads = 1, context = 8 },
    data = data, eval = eval, strategy = { prun.ddp {} }, optimizer = prun.sgd {},
  }
end

function cases.order() return plan(text { order = "epoch" }) end
function cases.hold_out_twice() return plan(text {}, prun.eval { every = 1, hold_out = 0.1, data = text {} }) end
function cases.hold_out_zero() return plan(text {}, prun.eval { every = 1, hold_out = 0 }) end
function cases.hold_out_too_much()
  return plan(text { path = "tests/errors/files/fifteen_bytes.txt" }, prun.eval { every = 1 })
end
function cases.no_pattern() return plan(text { path = "text/*.bin" }) end
function cases.no_array() return plan(arrays { x = "text/sample.txt" }) end
function cases.many_arrays() return plan(arrays { x = "tests/errors/files/*.txt" }) end
function cases.token_dtype()
  return plan(prun.data.tokens { path = "text/sample.txt", batch = 4, dtype = "uint8" })
end
function cases.scale_text() return plan(arrays { x = "text/sample.txt", scale = "1/255" }) end

return cases[arg.case]()
