-- prun.data.bytes: one or several files of any kind; each byte is a token, so the vocabulary is 256.

local data = require "prun.data"
local documents = require "prun.data.documents"

return data.source("bytes", {
  entries = documents.with {
    { name = "path", kind = "text",
      help = "the file, or a pattern; looked for here, beside the plan, then among prun's plans" },
    { name = "context", kind = "integer", optional = true, least = 1, most = 70368744177664,
      help = "tokens in a sample; by default the model's" },
    data.order,
    data.document_end,
  },
  vocab = 256,
  inputs = documents.inputs,
  settle = documents.settle,
  finish = function(source, result)
    local files, place = data.files(source, "path")
    for i, file in ipairs(files) do
      result.files[i] = { path = file.path, bytes = file.bytes, skip_bytes = 0, element = "u8" }
    end
    data.count_tokens(source, result, 1, place)
  end,
})
