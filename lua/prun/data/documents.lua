-- pack = "documents" of prun.data.bytes and prun.data.tokens: a sample is a stream of `capacity` tokens, which whole
-- documents fill (runtime/data/packed_documents.h). The model also gets batch.positions, which restart at 0 in each
-- document, and batch.documents, for each token the run of its document in the stream.

local documents = {}

documents.entries = {
  { name = "pack", kind = "text", optional = true, choices = { "documents" },
    help = "documents: a sample is a stream of whole documents, each as if it stood alone" },
  { name = "eot", kind = "integer", optional = true, least = 0, most = 2147483647,
    help = "with pack: the token that ends a document" },
  { name = "capacity", kind = "integer", optional = true, least = 1, most = 70368744177664,
    help = "with pack: tokens of a stream; by default the model's context" },
  { name = "long", kind = "text", optional = true, choices = { "error", "split", "truncate" },
    help = "with pack: rule for documents longer than the capacity; by default an error" },
}

-- Returns `entries` with those of packing.
function documents.with(entries)
  return table.move(documents.entries, 1, #documents.entries, #entries + 1, entries)
end

-- Checks the options; packing sets those of windows (context, document_end).
function documents.settle(kind, opt, site)
  local function fail(word, text, ...)
    host.fail(("prun.data.%s: "):format(kind) .. text:format(...), host.site_of_word(site, word))
  end
  if not opt.pack then
    for _, name in ipairs { "eot", "capacity", "long" } do
      if opt[name] ~= nil then fail(name, "'%s' is an option of packing: add pack = \"documents\"", name) end
    end
    return
  end
  if opt.context then fail("context", "with pack = \"documents\" write 'capacity' instead of 'context'") end
  if opt.document_end then fail("document_end", "with pack = \"documents\" write 'eot' instead of 'document_end'") end
  if not opt.eot then
    fail("pack", "pack = \"documents\" needs 'eot', the token that ends a document, such as eot = 50256")
  end
  opt.document_end, opt.context = opt.eot, opt.capacity
  opt.long, opt.order = opt.long or "error", opt.order or "epochs"
end

-- Returns the model's inputs. A generation reads no documents: its samples are one text.
function documents.inputs(opt)
  local inputs = { { "tokens", "i32", { opt.context } }, { "targets", "i32", { opt.context } } }
  if not opt.pack or host.shrink and host.shrink.tensor_ranks > 0 then return inputs end
  inputs[3], inputs[4] = { "positions", "i32", { opt.context } }, { "documents", "i32", { opt.context, 2 } }
  return inputs
end

return documents
