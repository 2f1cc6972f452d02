// prun ckpt ls|show|verify|diff: inspects a folder of checkpoints. A checkpoint describes itself, so no plan is needed;
// data are read in parts. ckpt_convert.cc has the verbs that create files.
#include "ckpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/field_json.h"
#include "base/terminal.h"
#include "base/text.h"
#include "checkpoint/hf/folder.h"
#include "checkpoint/history.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "command.h"

namespace prun {
namespace {

using checkpoint::Reader;
using Json = nlohmann::ordered_json;

// Returns the lineage as lines of `show`.
std::string lineage_text(const Reader& reader) {
  const checkpoint::Lineage& lineage = reader.index().lineage;
  if (!lineage.known()) return "run            not known: an earlier prun wrote it, without its run, branch and parent";
  const std::string run = lineage.run.empty() ? "none: imported" : lineage.run;
  const std::string text = fmt::format("run            {}\nbranch         {}\nparent         ", run, lineage.branch);
  const checkpoint::ParentCheckpoint& parent = lineage.parent;
  if (!lineage.has_parent()) return text + "none: from the beginning";
  const std::string above = std::filesystem::path(reader.folder()).parent_path().string();
  const bool there = checkpoint::parent_of(above.empty() ? "." : above, lineage).has_value();
  return fmt::format("{}{} (step {}, {}{})", text, parent.checkpoint, parent.step,
                     parent.run.empty() ? "its run is not known" : "run " + parent.run, there ? "" : "; it is gone");
}

std::string data_text(const checkpoint::Index& index) {
  const checkpoint::SavedData& data = index.data;
  const RunPosition& at = index.position;
  if (data.kind.empty()) return "data           none\n";
  std::string text =
      fmt::format("data           {}{}, {} read", data.kind,
                  data.path.empty() ? "" : fmt::format(" {} ({})", data.path, human_bytes(data.file_bytes)),
                  counted(at.samples, "sample"));
  if (at.tokens < 0) text += " if all batches had one size";
  if (at.tokens >= 0 && at.tokens != at.samples) text += fmt::format(", {} in all", counted(at.tokens, "token"));
  text += "\n";
  if (!data.identity.known())
    return text + "content        not known: --resume can compare the size of the data, not their bytes\n";
  for (const checkpoint::DataContent& content : data.identity.contents)
    text += fmt::format("content        {}{} of {}, {} sampled\n", content.name.empty() ? "" : content.name + ": ",
                        grouped(content.elements), content.element, counted(std::ssize(content.blocks), "block"));
  return text;
}

std::string kernels_text(const Numerics& numerics) {
  if (numerics.kernels.empty()) return numerics.implementation;
  return fmt::format("{}, version {}, {}", numerics.kernels, numerics.arithmetic, numerics.implementation);
}

std::string adapters_text(const Adapters& adapters) {
  if (!adapters.any()) return "";
  std::string text =
      fmt::format("adapters       of {}, rank {}, alpha {}", adapters.match, adapters.rank, adapters.alpha);
  if (adapters.has_base()) text += fmt::format("; base {} (SHA-256 {})", adapters.base, adapters.base_sha256);
  return text + "\n";
}

int show(const CkptOptions& options, const std::string& folder) {
  if (checkpoint::is_hf_folder(folder)) return ckpt_show_hf(options, folder);
  const Reader reader(checkpoint::resolve(folder));
  Json all = ckpt_summary(reader.folder(), reader.index());
  if (!options.json) {
    const checkpoint::Index& index = reader.index();
    fmt::print("{}: after step {} of {}, {} on {}, seed {}\n", reader.folder(), index.position.step, index.steps,
               index.plan, index.mesh, index.seed);
    fmt::print("{}", data_text(index));
    fmt::print("learning rate  {}\nkernels        {}\n", index.rate, kernels_text(index.numerics));
    fmt::print("{}\n{}", lineage_text(reader), adapters_text(index.adapters));
    if (index.position.restarts > 0) fmt::print("restarts       {} led here\n", index.position.restarts);
    if (!index.numerics.algorithms.value_or("").empty()) fmt::print("algorithms     by calibration\n");
    for (const auto& [name, tensor] : reader.index().tensors)
      fmt::print("  {:<44} {:<5} {:<16} {}{}\n", name, tensor.dtype, shape_text(tensor.shape),
                 counted(std::ssize(tensor.pieces), "piece"),
                 tensor.drift.empty() ? "" : fmt::format(", of each rank of {}", tensor.drift));
    return 0;
  }
  for (const auto& [name, tensor] : reader.index().tensors) all["tensors"][name] = fields_json(tensor);
  fmt::print("{}\n", all.dump());
  return 0;
}

int verify(const CkptOptions& options, const std::string& folder) {
  const Reader reader(checkpoint::resolve(folder));
  std::string problem;
  try {
    Bar bar("verify");
    reader.verify(checkpoint::Part::state, [&](int64_t bytes, int64_t of) { bar.advance(bytes, of); });
  } catch (const Error& error) {
    problem = error.message();
  }
  if (options.json) {
    Json line = ckpt_summary(reader.folder(), reader.index());
    line["whole"] = problem.empty();
    if (!problem.empty()) line["problem"] = problem;
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("{}\n", problem.empty()
                           ? fmt::format("{}: whole, {}", reader.folder(), human_bytes(ckpt_bytes(reader.index())))
                           : problem);
  }
  return static_cast<int>(problem.empty() ? Exit::ok : Exit::check_failed);
}

// Returns the number of elements of a tensor whose bytes differ, reading boxes of at most kMost elements.
int64_t differing(const checkpoint::Weights& a, const checkpoint::Weights& b, const std::string& name) {
  constexpr int64_t kMost = int64_t{1} << 20;
  const checkpoint::Weight& mine = a.tensors.at(name);
  const int64_t size = dtype_bytes(mine.dtype);
  int64_t count = 0;
  std::vector<std::byte> here, there;
  for (const checkpoint::WeightPiece& piece : mine.pieces) {
    const int64_t rows = piece.shape.empty() ? 1 : piece.shape[0],
                  row = element_count(piece.shape) / std::max<int64_t>(1, rows);
    const int64_t step = std::max<int64_t>(1, kMost / std::max<int64_t>(1, row));
    for (int64_t first = 0; first < rows; first += step) {
      Box box{piece.offset, piece.shape, 0, Shape(piece.shape.size(), 1)};
      if (!box.shape.empty()) box.shape[0] = std::min(step, rows - first), box.offset[0] += first;
      for (size_t d = box.shape.size(); d-- > 1;) box.strides[d - 1] = box.strides[d] * box.shape[d];
      const size_t bytes = static_cast<size_t>(box.elements() * size);
      here.assign(bytes, std::byte{0});
      there.assign(bytes, std::byte{0});
      a.read(name, box, mine.dtype, here.data());
      b.read(name, box, mine.dtype, there.data());
      if (here == there) continue;
      for (int64_t i = 0; i < box.elements(); ++i) count += std::memcmp(&here[i * size], &there[i * size], size) != 0;
    }
  }
  return count;
}

// Returns exit code 1 if they differ, like diff(1).
int diff(const CkptOptions& options, const std::string& one, const std::string& other) {
  const auto a = checkpoint::open_checkpoint(checkpoint::resolve(one), checkpoint::Take::state),
             b = checkpoint::open_checkpoint(checkpoint::resolve(other), checkpoint::Take::state);
  Json found = Json::object();
  for (const auto& [name, tensor] : a.tensors) {
    const auto there = b.tensors.find(name);
    if (there == b.tensors.end())
      found[name] = "only in the first";
    else if (there->second.shape != tensor.shape || there->second.dtype != tensor.dtype)
      found[name] = fmt::format("{}{} and {}{}", checkpoint::safetensors_dtype(tensor.dtype), shape_text(tensor.shape),
                                checkpoint::safetensors_dtype(there->second.dtype), shape_text(there->second.shape));
    else if (const int64_t n = differing(a, b, name); n > 0)
      found[name] = fmt::format("{} of {} elements differ", n, element_count(tensor.shape));
  }
  for (const auto& [name, tensor] : b.tensors)
    if (!a.tensors.contains(name)) found[name] = "only in the second";
  if (options.json) fmt::print("{}\n", Json{{"differ", found}}.dump());
  for (const auto& [name, what] : found.items())
    if (!options.json) fmt::print("{}: {}\n", name, what.get<std::string>());
  if (!options.json && found.empty()) fmt::print("the same {} tensors, bit for bit\n", a.tensors.size());
  return static_cast<int>(found.empty() ? Exit::ok : Exit::check_failed);
}

struct Verb {
  const char* name;
  size_t folders;
  const char* more;  // end of its example
  int (*run)(const CkptOptions&);
};
const Verb kVerbs[] = {
    {"ls", 1, "", [](const CkptOptions& o) { return ckpt_list(o, o.operands[1]); }},
    {"show", 1, "", [](const CkptOptions& o) { return show(o, o.operands[1]); }},
    {"verify", 1, "", [](const CkptOptions& o) { return verify(o, o.operands[1]); }},
    {"diff", 2, " runs/b", [](const CkptOptions& o) { return diff(o, o.operands[1], o.operands[2]); }},
    {"reshard", 1, " --ranks 4 --out runs/b", ckpt_reshard},
    {"export", 1, " --format hf --out model", ckpt_export},
    {"import", 1, " --out runs/b", ckpt_import},
};

}  // namespace

int64_t ckpt_bytes(const checkpoint::Index& index) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : index.tensors)
    bytes += element_count(tensor.shape) * dtype_bytes(checkpoint::dtype_of(tensor.dtype));
  return bytes;
}

Json ckpt_summary(const std::string& folder, const checkpoint::Index& index) {
  Json all = {{"checkpoint", folder}, {"id", index.id}, {"bytes", ckpt_bytes(index)}};
  all.update(fields_json(index));
  return all;
}

std::vector<std::string> ckpt_verbs() {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  return names;
}

namespace {

class Ckpt final : public Command {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;

 private:
  CkptOptions options_;
};

void Ckpt::declare(OptionTable& table) {
  table.text("--out", "FOLDER", options_.out, "reshard, export, import: the folder to make");
  table.text("--format", "hf|torch|peft", options_.format,
             "export: hf, the default: a folder that transformers loads; torch: prun's names, PyTorch's layout; peft: "
             "adapters");
  table.flag("--merge", options_.merge, "export: add the adapters to the weights of their base");
  table.flag("--ema", options_.ema, "export: the running averages of the weights");
  table.text("--base", "DIR", options_.base, "export: where the base of adapters is (default: where it was)");
  table.text("--description", "NAME|FILE", options_.description,
             "export: the architecture whose names and options the folder gets (default: by the model)");
  table.text("--dtype", "f32|bf16|f16", options_.dtype, "export: of the weights (default: as they are stored)");
  table.text("--tokenizer", "FILE|none", options_.tokenizer,
             "export: the tokenizer.json to copy (default: that beside the token files it was trained on, if any)");
  table.whole("--ranks", "N", options_.ranks, 1, "reshard: how many ranks share the files");
  table.whole("--file-mib", "N", options_.file_mib, 1, "export: the most of a file, in MiB (default 5000)");
}

void Ckpt::settle() {
  options_.operands = line_.operands;
  options_.json = line_.json;
}

int Ckpt::run() {
  const std::vector<std::string>&words = options_.operands, names = ckpt_verbs();
  if (words.empty()) throw usage_error(fmt::format("prun ckpt needs a command (one of: {})", join(names, ", ")));
  const auto verb =
      std::find_if(std::begin(kVerbs), std::end(kVerbs), [&](const Verb& v) { return words[0] == v.name; });
  if (verb == std::end(kVerbs))
    throw usage_error(
        fmt::format("prun ckpt has no '{}'{}; one of: {}", words[0], if_near(words[0], names), join(names, ", ")));
  if (words.size() != verb->folders + 1)
    throw usage_error(fmt::format("prun ckpt {} takes {}, for example: prun ckpt {} runs/a{}", verb->name,
                                  counted(static_cast<int64_t>(verb->folders), "folder"), verb->name, verb->more));
  return verb->run(options_);
}

}  // namespace

std::unique_ptr<Command> make_ckpt() { return std::make_unique<Ckpt>(); }

}  // namespace prun
