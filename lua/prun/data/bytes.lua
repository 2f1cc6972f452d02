-- prun.data.bytes: any file; each byte is a token, so the vocabulary is 256.

local data = require "prun.data"

return data.source("bytes", {
  entries = {
    { name = "path", kind = "text", help = "the file; looked for here, beside the plan, then among prun's plans" },
    { name = "context", kind = "integer", optional = true, least = 1, most = 70368744177664,
      help = "tokens in a sample; by default the model's" },
  },
  inputs = function(opt) return { { "tokens", "i32", { opt.context } }, { "targets", "i32", { opt.context } } } end,
  finish = function(source, result)
    result.vocab = 256
    result.path, result.file_bytes = data.file(source, 1, 0)
  end,
})
