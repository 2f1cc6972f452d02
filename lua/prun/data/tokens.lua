-- prun.data.tokens: a file of uint16 token ids in little-endian order, as nanoGPT writes it, or with the header of
-- 1,024 bytes that llm.c puts in front (skip_bytes = 1024).

local data = require "prun.data"

return data.source("tokens", {
  entries = {
    { name = "path", kind = "text", help = "the file; looked for here, beside the plan, then among prun's plans" },
    { name = "skip_bytes", kind = "integer", default = 0, least = 0, most = 70368744177664,
      help = "size of a header; 1024 for files of llm.c" },
    { name = "context", kind = "integer", optional = true, least = 1, most = 70368744177664,
      help = "tokens in a sample; by default the model's" },
    { name = "vocab", kind = "integer", optional = true, least = 1, most = 70368744177664,
      help = "a larger id is an error; by default the model's" },
  },
  inputs = function(opt) return { { "tokens", "i32", { opt.context } }, { "targets", "i32", { opt.context } } } end,
  finish = function(source, result)
    result.skip_bytes = source.options.skip_bytes
    result.path, result.file_bytes = data.file(source, 2, result.skip_bytes)
  end,
})
