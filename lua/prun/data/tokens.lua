-- prun.data.tokens: files of token ids, little-endian uint16 or uint32, either raw as in nanoGPT or after the header of
-- llm.c and tools/tokenize, which states dtype and count. A pattern such as "train_*.bin" names several files, whose
-- tokens are concatenated in the order of the names.

local data = require "prun.data"
local documents = require "prun.data.documents"

local elements = { uint16 = "u16", uint32 = "u32" }
local widths = { u16 = 2, u32 = 4 }

-- Returns the plan's record of a file, from its header and the options.
local function described(file, opt, place)
  local function fail(text, ...) host.fail(("data: %s: "):format(file.shown) .. text:format(...), place) end
  local header, why = host.token_header(file.path)
  if header == nil then fail("%s", why) end
  local given, skip = elements[opt.dtype], opt.skip_bytes
  if not header and why and not given and not skip then
    fail("it is %s, and prun.data.tokens reads ids: tools/tokenize --tokenizer tokenizer.json --out data FILE makes " ..
      "token files%s", why, why == "text" and "; prun.data.bytes reads text byte by byte" or "")
  end
  if not header then
    local width, from = widths[given or "u16"], skip or 0
    if from > file.bytes then fail("skip_bytes is %d, and the file has %d", from, file.bytes) end
    if (file.bytes - from) % width ~= 0 then
      fail("%d bytes%s are not a whole number of ids of %d bytes: the file is truncated, or of another kind",
        file.bytes - from, from > 0 and (" behind skip_bytes = %d"):format(from) or "", width)
    end
    return { path = file.path, bytes = file.bytes, skip_bytes = skip or 0, element = given or "u16" }
  end
  if skip and skip ~= header.skip_bytes then
    fail("it has a header of %d bytes, and skip_bytes is %d; omit it", header.skip_bytes, skip)
  end
  if given and given ~= header.element then
    fail("its header says %s, and dtype is '%s'; omit dtype", header.element:gsub("^u", "uint"), opt.dtype)
  end
  local tokens = (file.bytes - header.skip_bytes) / widths[header.element]
  if tokens ~= header.tokens then
    fail("its header counts %d tokens, and there are %s: it has been cut or is not whole yet", header.tokens,
      math.tointeger(tokens) or tokens)
  end
  return { path = file.path, bytes = file.bytes, skip_bytes = header.skip_bytes, element = header.element }
end

return data.source("tokens", {
  entries = documents.with {
    { name = "path", kind = "text",
      help = "the file, or a pattern; looked for here, beside the plan, then among prun's plans" },
    { name = "skip_bytes", kind = "integer", optional = true, least = 0, most = 70368744177664,
      help = "size of a header; by default that of llm.c where there is one" },
    { name = "dtype", kind = "text", optional = true, choices = { "uint16", "uint32" },
      help = "of the ids; by default what a header says, or uint16" },
    { name = "context", kind = "integer", optional = true, least = 1, most = 70368744177664,
      help = "tokens in a sample; by default the model's" },
    { name = "vocab", kind = "integer", optional = true, least = 1, most = 70368744177664,
      help = "a larger id is an error; by default the model's" },
    data.order,
    data.document_end,
  },
  inputs = documents.inputs,
  settle = documents.settle,
  finish = function(source, result)
    local files, place = data.files(source, "path")
    for i, file in ipairs(files) do
      result.files[i] = described(file, source.options, place)
      local first, here = result.files[1].element, result.files[i].element
      if first ~= here then
        host.fail(("data: %s holds %s and %s %s"):format(files[1].shown, first:gsub("^u", "uint"), file.shown,
          here:gsub("^u", "uint")), place)
      end
    end
    data.count_tokens(source, result, widths[#files > 0 and result.files[1].element or "u16"], place)
  end,
})
