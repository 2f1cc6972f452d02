// prun ckpt export|import|reshard: converts weights and checkpoints to another layout, with a progress bar on a
// terminal.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/field_json.h"
#include "base/terminal.h"
#include "base/text.h"
#include "checkpoint/base.h"
#include "checkpoint/hf/folder.h"
#include "checkpoint/history.h"
#include "checkpoint/linear_weights.h"
#include "checkpoint/write_files.h"
#include "ckpt.h"
#include "ir/mesh.h"
#include "tokenizer_files.h"

namespace prun {
namespace {

using checkpoint::Weights;

void require_out(const CkptOptions& options, const char* verb) {
  if (options.out.empty()) throw usage_error(fmt::format("prun ckpt {} needs --out FOLDER, which is made", verb));
}

std::optional<Dtype> export_dtype(const std::string& name) {
  if (name.empty()) return std::nullopt;
  const std::vector<std::string> names = {"f32", "bf16", "f16"};
  if (std::ranges::find(names, name) == names.end())
    throw usage_error(fmt::format("--dtype: unknown type '{}'{}", name, did_you_mean(name, names)));
  return parse_dtype(name);
}

// Adds the tokenizer's files to the exported folder. Returns their source; "": none.
std::string add_tokenizer(const std::string& named, const std::string& checkpoint, const ModelDescription& model,
                          checkpoint::HfExport& how) {
  if (named == "none") return "";
  const std::string path = named.empty() ? known_tokenizer(checkpoint) : named;
  if (path.empty()) return "";
  TokenizerFiles files = tokenizer_files(path, model);
  how.files = std::move(files.contents);
  how.ends = std::move(files.ends);
  return path;
}

// Adapters are exported alone or merged, and only they are.
void require_adapters(const CkptOptions& options, const std::string& from, const Adapters& adapters) {
  const bool peft = options.format == "peft";
  if (adapters.any() && !options.merge && !peft)
    throw usage_error(
        fmt::format("{} holds adapters of the base {}: --merge exports the sum of both, --format peft the "
                    "adapters alone",
                    from, adapters.base));
  if (!adapters.any() && (options.merge || peft))
    throw usage_error(fmt::format("{} holds no adapters, which {} exports: they come from lora = prun.lora {{ ... }}",
                                  from, peft ? "--format peft" : "--merge"));
}

// Reports the result, in one line or as JSON.
int say(const CkptOptions& options, const Weights& weights, const std::string& what, const std::string& from) {
  if (options.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"from", from},
                                              {"out", options.out},
                                              {"tensors", weights.tensors.size()},
                                              {"bytes", weight_bytes(weights)},
                                              {"model", fields_json(weights.model)}}
                           .dump());
  else
    fmt::print("{}: {}, {} tensors, {}\n", options.out, what, weights.tensors.size(),
               human_bytes(weight_bytes(weights)));
  return 0;
}

}  // namespace

int ckpt_export(const CkptOptions& options) {
  require_out(options, "export");
  const bool torch = options.format == "torch", peft = options.format == "peft";
  if (!options.format.empty() && options.format != "hf" && !torch && !peft)
    throw usage_error(fmt::format("--format: unknown format '{}' (one of: hf, torch, peft)", options.format));
  if (options.merge && peft)
    throw usage_error(
        "--format peft exports adapters alone, and --merge adds them to their base: choose one of the two");
  checkpoint::HfExport how;
  how.file_bytes = int64_t{options.file_mib} << 20;
  how.dtype = export_dtype(options.dtype);
  how.description = options.description;
  if (checkpoint::is_hf_folder(options.operands[1]))
    throw usage_error(fmt::format("{} is a Hugging Face folder already; prun ckpt import makes a checkpoint of it",
                                  options.operands[1]));
  const std::string from = checkpoint::resolve(options.operands[1]);
  const Adapters adapters = checkpoint::read_index(from).adapters;
  require_adapters(options, from, adapters);
  const checkpoint::Take take = checkpoint::parameters_or_averages(options.ema);
  const Weights weights = peft ? checkpoint::open_with_base(from, take, options.base)
                               : checkpoint::open_merged(from, options.base, true, take);
  const std::string tokenizer = torch || peft ? "" : add_tokenizer(options.tokenizer, from, weights.model, how);
  {
    Bar bar("export");
    const checkpoint::Advance advance = [&](int64_t bytes, int64_t of) { bar.advance(bytes, of); };
    if (peft)
      checkpoint::export_peft(weights, adapters, options.out, how, advance);
    else
      (torch ? checkpoint::export_torch : checkpoint::export_hf)(weights, options.out, how, advance);
  }
  if (peft) {
    fmt::print("{}: adapters of {} for peft, of the base {}\n", options.out, from, adapters.base);
    return 0;
  }
  std::string what = fmt::format("{}{} of {} for {}", options.merge ? "merged " : "",
                                 torch ? "weights" : weights.model.name, from, torch ? "PyTorch" : "transformers");
  if (how.dtype) what += fmt::format(" in {}", dtype_name(*how.dtype));
  if (!torch) what += tokenizer.empty() ? ", without a tokenizer" : ", with the tokenizer " + tokenizer;
  return say(options, weights, what, from);
}

int ckpt_import(const CkptOptions& options) {
  require_out(options, "import");
  const std::string& from = options.operands[1];
  const Weights weights = checkpoint::open_weights(from);
  checkpoint::require_known_layout(weights);
  if (checkpoint::is_used(options.out))
    throw usage_error(fmt::format("{} has checkpoints already: --out names a folder that is made", options.out));
  checkpoint::Index index;
  index.lineage = checkpoint::lineage_after(options.out, "", "");
  index.ranks = 1;
  index.mesh = Mesh().text();
  index.plan = from;
  index.model = weights.model;
  {
    Bar bar("import");
    checkpoint::write_checkpoint(weights, index, options.out, "f32",
                                 [&](int64_t bytes, int64_t of) { bar.advance(bytes, of); });
  }
  return say(options, weights, checkpoint::model_text(weights.model), from);
}

int ckpt_reshard(const CkptOptions& options) {
  require_out(options, "reshard");
  if (options.ranks < 1) throw usage_error("prun ckpt reshard needs --ranks N: how many ranks share the files");
  const std::string from = checkpoint::resolve(options.operands[1]);
  checkpoint::Index index = checkpoint::read_index(from);
  const Weights weights = checkpoint::open_checkpoint(from, checkpoint::Take::state);
  index.ranks = options.ranks;
  index.mesh = fmt::format("{} (resharded)", counted(index.ranks, "rank"));
  if (checkpoint::is_used(options.out))
    throw usage_error(fmt::format("{} has checkpoints already: --out names a folder that is made", options.out));
  std::filesystem::create_directories(options.out);
  index.lineage = checkpoint::lineage_after(options.out, index.lineage.run, from);
  {
    Bar bar("reshard");
    checkpoint::write_checkpoint(weights, index, options.out, "",
                                 [&](int64_t bytes, int64_t of) { bar.advance(bytes, of); });
  }
  return say(options, weights,
             fmt::format("step {} of {} for {}", index.position.step, from, counted(index.ranks, "rank")), from);
}

int ckpt_show_hf(const CkptOptions& options, const std::string& folder) {
  const Weights weights = checkpoint::open_hf_folder(folder);
  if (options.json) {
    nlohmann::ordered_json all = {{"folder", folder}, {"model", fields_json(weights.model)}};
    for (const auto& [name, weight] : weights.tensors)
      all["state"][name] = {{"dtype", dtype_name(weight.dtype)}, {"shape", weight.shape}};
    fmt::print("{}\n", all.dump());
    return 0;
  }
  fmt::print("{}: {}, {}\n{}\n", folder, weights.origin, human_bytes(weight_bytes(weights)),
             checkpoint::model_text(weights.model));
  for (const auto& [name, weight] : weights.tensors)
    fmt::print("  {:<44} {:<5} {}\n", name, dtype_name(weight.dtype), shape_text(weight.shape));
  return 0;
}

int64_t weight_bytes(const Weights& weights) {
  int64_t bytes = 0;
  for (const auto& [name, weight] : weights.tensors) bytes += element_count(weight.shape) * dtype_bytes(weight.dtype);
  return bytes;
}

}  // namespace prun
