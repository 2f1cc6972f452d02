-- Invalid data; `--set case=NAME` selects a case.
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
function cases.data_in_a_folder() return plan(text { path = "tests/errors" }) end
function cases.tokens_cut_within_an_id()
  return plan(prun.data.tokens { path = "tests/errors/files/fifteen_bytes.txt", batch = 4, dtype = "uint16" })
end
function cases.tokens_behind_a_long_header()
  return plan(prun.data.tokens { path = "tests/errors/files/fifteen_bytes.txt", batch = 4, skip_bytes = 1024 })
end
function cases.document_end_beyond_vocab() return plan(text { document_end = 256 }) end
function cases.document_end_nowhere() return plan(text { document_end = 0 }) end
function cases.document_end_is_a_text() return plan(text { document_end = "</s>" }) end
function cases.init_from_a_file()
  return prun.plan {
    mesh = prun.mesh { dp = prun.world }, model = prun.models.gpt { layers = 1, width = 8, heads = 1, context = 8 },
    init = prun.init.from { path = "tests/errors/files/empty.txt" }, data = text {}, optimizer = prun.sgd {},
  }
end
local function llama(options)
  options.layers, options.width, options.heads, options.context = 1, 8, 1, 8
  return prun.plan {
    mesh = prun.mesh { dp = prun.world }, model = prun.models.llama(options), data = text {}, optimizer = prun.sgd {},
  }
end
function cases.rotary_scaling_of_another_type() return llama { rope_type = "yarn" } end
function cases.rotary_scaling_without_a_range() return llama { rope_type = "llama3", low_freq_factor = 5 } end
function cases.tokens_of_a_text() return plan(prun.data.tokens { path = "text/sample.txt", batch = 4 }) end

function cases.inputs_and_x() return plan(arrays { x = "a.npy", inputs = { y = "b.npy" } }) end
function cases.no_inputs() return plan(arrays {}) end
local x, threes = "tests/errors/files/x.npy", "tests/errors/files/threes.npy"
function cases.array_files_differ() return plan(arrays { x = { x, threes } }) end
function cases.arrays_of_other_lengths() return plan(arrays { inputs = { x = x, y = { threes, threes } } }) end
function cases.last_of_random() return plan(arrays { x = x, order = "random", last = "pad" }) end
local function feed(inputs) return plan(prun.data.feed { name = "f", batch = 4, inputs = inputs }) end
function cases.feed_element() return feed { tokens = { "int46", 8 } } end
function cases.feed_size() return feed { tokens = { "int64", 0 } } end
function cases.feed_ids() return feed { tokens = { "float32", 8, as = "ids" } } end
function cases.feed_empty() return feed {} end

return cases[arg.case]()
