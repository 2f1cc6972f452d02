// Most sizes do not divide evenly: 3 layers over 2 and 4 stages, a vocabulary of 257 over tp, 3 and 5 microbatches over
// 2 and 4 stages, flat vectors over 3 ranks. Sizes that must divide do: heads, batch, tokens.
#include "tests/parity/product_cases.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

namespace prun::test {
namespace {

// "dp=2 tp=2 micro=3" -> settings.
Settings settings_of(const std::string& text) {
  Settings settings;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    settings[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return settings;
}

int ranks_of(const Settings& settings) {
  int ranks = 1;
  for (const char* axis : {"pp", "replicate", "dp", "cp", "ep", "tp"}) {
    const auto size = settings.find(axis);
    if (size != settings.end()) ranks *= std::stoi(size->second);
  }
  return ranks;
}

// Returns the settings that change the result; the others only change how it is computed.
Settings yardstick_of(const Settings& settings) {
  Settings kept;
  for (const char* name : {"model", "layers",  "width",   "heads",   "kv_heads", "vocab",          "context", "batch",
                           "tied",  "dropout", "experts", "choices", "loss",     "optimizer",      "adjust",  "lr",
                           "clip",  "groups",  "frozen",  "lora",    "train",    "adapter_dropout"}) {
    const auto found = settings.find(name);
    if (found != settings.end()) kept.insert(*found);
  }
  // The load-balancing loss is computed per microbatch.
  const std::string& model = settings.at("model");
  if ((model == "moe" || model == "mixtral") && settings.count("micro")) kept["micro"] = settings.at("micro");
  return kept;
}

struct Row {
  const char* strategy;
  const char* models;  // keys of kModels
  const char* common;  // settings of all its meshes
  std::vector<const char*> meshes;
};

const std::map<char, const char*> kModels = {
    {'g', "gpt"},       {'l', "llama"},  {'m', "moe"},       {'p', "mlp"},     {'a', "again"}, {'w', "lent"},
    {'t', "table"},     {'u', "unet"},   {'r', "raw"},       {'x', "mixtral"}, {'b', "bare"},  {'n', "after"},
    {'f', "functions"}, {'o', "rows"},   {'i', "mixer"},     {'j', "joined"},  {'h', "heads"}, {'k', "picks"},
    {'y', "gated"},     {'c', "images"}, {'s', "sequences"}, {'z', "folded"}};

// CI runs the first mesh of each row with its first model.
const std::vector<Row> kRows = {
    {"microbatches", "glmp", "", {"micro=3", "micro=12"}},
    {"functions",
     "f",
     "",
     {"dp=2 tp=3 data_parallel=zero3 micro=2", "micro=3", "dp=3", "dp=2 data_parallel=zero3", "tp=2",
      "tp=2 sequence=true", "cp=2 context=12", "pp=2 micro=3", "pp=2 dp=2 tp=2 micro=3 data_parallel=zero3",
      "dp=2 recompute=blocks", "pp=2 schedule=zb_h1 micro=3"}},
    {"functions of rows", "o", "", {"dp=3 micro=2", "micro=3", "dp=2 data_parallel=zero3", "tp=2", "pp=2 micro=3"}},
    {"on one rank",
     "gm",
     "",
     {"dp=1", "dp=1 data_parallel=zero1", "dp=1 data_parallel=zero2 micro=2", "dp=1 data_parallel=zero3",
      "pp=1 micro=2", "pp=1 schedule=zb_h1 micro=3"}},
    {"on one rank, too", "gl", "", {"tp=1", "tp=1 sequence=true", "cp=1", "pp=1 dp=1 cp=1 tp=1"}},
    {"ep on one rank", "m", "", {"ep=1", "dp=1 ep=1"}},
    {"axes of one rank, what they could not divide",
     "gl",
     "context=7",
     {"tp=1 cp=1 sequence=true", "dp=2 cp=1 micro=2 data_parallel=zero3", "pp=2 cp=1 tp=1 micro=2"}},
    {"sequence on one rank x cp", "g", "context=12 batch=12", {"cp=2 tp=1 sequence=true"}},
    {"axes of one rank, nothing to divide", "pw", "", {"tp=1 cp=1", "dp=2 cp=1 tp=1"}},
    {"over the wire as f32",
     "glp",
     "wire=f32 optimizer=sgd",
     {"dp=2 data_parallel=zero3", "dp=3 data_parallel=zero2 micro=2", "dp=3 data_parallel=zero1",
      "replicate=2 dp=2 data_parallel=zero3", "pp=2 dp=2 data_parallel=keep micro=3"}},
    {"recompute", "glm", "recompute=blocks", {"micro=2", "dp=2", "tp=2", "pp=2 micro=3"}},
    {"recompute whole", "mxg", "recompute=blocks again=true", {"dp=2", "dp=2 cp=2 context=12", "pp=2 micro=3"}},
    {"recompute whole, experts", "mx", "recompute=blocks again=true", {"tp=2 ep=2"}},
    {"recompute whole, gathered once more",
     "gl",
     "data_parallel=zero3 again=true",
     {"dp=2 recompute=embed", "dp=2 recompute=head micro=2", "dp=2 recompute=embed tied=true",
      "dp=2 tp=2 recompute=embed", "pp=2 dp=2 recompute=embed micro=3", "dp=2 recompute=embed data_parallel=keep"}},
    {"ddp", "glmp", "", {"dp=3", "dp=2", "dp=4 micro=2", "dp=8", "dp=2 micro=3"}},
    {"ddp, AdamW, clipped", "gm", "optimizer=adamw lr=0.003 clip=0.5", {"dp=2 micro=2", "dp=3"}},
    {"targets unread", "p", "loss=mean", {"dp=2", "pp=2 micro=3", "tp=2", "dp=2 data_parallel=zero3"}},
    {"zero1", "glmp", "data_parallel=zero1", {"dp=3", "dp=2", "dp=4 micro=2", "dp=8", "dp=2 micro=3"}},
    {"zero1, AdamW, clipped", "gm", "data_parallel=zero1 optimizer=adamw lr=0.003 clip=0.5", {"dp=3 micro=2", "dp=2"}},
    {"zero2", "glmp", "data_parallel=zero2", {"dp=3", "dp=2", "dp=4 micro=2", "dp=8", "dp=2 micro=3"}},
    {"zero2, AdamW, clipped", "gm", "data_parallel=zero2 optimizer=adamw lr=0.003 clip=0.5", {"dp=3 micro=2", "dp=2"}},
    {"zero3", "glmp", "data_parallel=zero3", {"dp=3", "dp=2", "dp=4 micro=2", "dp=8", "dp=2 micro=3"}},
    {"zero3, AdamW, clipped", "gm", "data_parallel=zero3 optimizer=adamw lr=0.003 clip=0.5", {"dp=3 micro=2", "dp=2"}},
    {"groups",
     "glp",
     "groups=true optimizer=adamw lr=0.003 clip=0.5",
     {"dp=2 tp=2 data_parallel=zero3", "dp=3", "dp=2 data_parallel=zero1", "dp=3 data_parallel=zero2 micro=2",
      "dp=4 data_parallel=zero3", "dp=3 data_parallel=whole", "replicate=2 dp=2 data_parallel=zero3", "tp=3",
      "pp=3 micro=2", "pp=2 dp=2 data_parallel=zero3 micro=3"}},
    {"groups, offload",
     "g",
     "groups=true optimizer=adamw lr=0.003 offload=true",
     {"dp=2 data_parallel=zero3", "dp=3", "dp=2 tp=2 data_parallel=zero1", "pp=2 dp=2 micro=3 data_parallel=zero3"}},
    {"an optimizer of one's own",
     "gml",
     "groups=true optimizer=own lr=0.003 clip=0.5",
     {"dp=2 tp=2 data_parallel=zero3", "dp=3", "dp=2 data_parallel=zero1", "dp=3 data_parallel=zero2 micro=2",
      "dp=2 data_parallel=zero3 offload=true", "replicate=2 dp=2 data_parallel=zero3", "pp=2 dp=2 micro=3",
      "dp=3 data_parallel=whole"}},
    {"Muon",
     "gl",
     "optimizer=muon lr=0.02",
     {"dp=2 tp=2 data_parallel=zero3", "dp=3", "micro=3", "dp=2 data_parallel=zero1 micro=2",
      "dp=3 data_parallel=zero2 micro=2", "dp=4 data_parallel=zero3", "dp=2 data_parallel=whole", "tp=3",
      "tp=2 sequence=true", "dp=2 tp=2", "dp=2 tp=2 data_parallel=zero1", "replicate=2 dp=2 data_parallel=zero3",
      "pp=3 micro=2", "pp=2 dp=2 tp=2 data_parallel=zero3 micro=3", "cp=2 context=12 batch=12",
      "dp=2 data_parallel=keep micro=2", "dp=2 recompute=blocks"}},
    {"Muon, clipped",
     "g",
     "optimizer=muon lr=0.02 clip=0.5 adjust=match_rms_adamw",
     {"dp=2 data_parallel=zero3", "dp=3 micro=2", "tp=2"}},
    {"Muon, tied", "g", "optimizer=muon lr=0.02 tied=true", {"pp=2 dp=2 data_parallel=zero3 micro=2", "tp=2"}},
    {"Muon, experts", "m", "optimizer=muon lr=0.02", {"dp=2 ep=2 data_parallel=zero3", "ep=2", "dp=2", "ep=2 tp=2"}},
    {"Adafactor",
     "gl",
     "optimizer=adafactor lr=0.02",
     {"dp=2 tp=2 data_parallel=zero3", "dp=3", "micro=3", "dp=2 data_parallel=zero1 micro=2",
      "dp=3 data_parallel=zero2 micro=2", "dp=4 data_parallel=zero3", "dp=2 data_parallel=whole", "tp=3",
      "tp=2 sequence=true", "dp=2 tp=2", "dp=2 tp=2 data_parallel=zero1", "replicate=2 dp=2 data_parallel=zero3",
      "pp=3 micro=2", "pp=2 dp=2 tp=2 data_parallel=zero3 micro=3", "cp=2 context=12 batch=12",
      "dp=2 data_parallel=keep micro=2", "dp=2 recompute=blocks"}},
    {"Adafactor, clipped, groups",
     "gp",
     "optimizer=adafactor lr=0.02 clip=0.5 groups=true",
     {"dp=2 data_parallel=zero3", "dp=3 micro=2", "tp=2", "pp=2 dp=2 tp=2 data_parallel=zero3 micro=3"}},
    {"Adafactor, convolutions", "c", "optimizer=adafactor lr=0.02", {"dp=2 data_parallel=zero3", "dp=3"}},
    {"Adafactor, tied",
     "g",
     "optimizer=adafactor lr=0.02 tied=true",
     {"pp=2 dp=2 data_parallel=zero3 micro=2", "tp=2"}},
    {"Adafactor, experts",
     "m",
     "optimizer=adafactor lr=0.02",
     {"dp=2 ep=2 data_parallel=zero3", "ep=2", "dp=2", "ep=2 tp=2", "dp=2 fold=dp data_parallel=zero3"}},
    {"an optimizer of one's own, experts",
     "m",
     "optimizer=own lr=0.003 clip=0.5",
     {"ep=2", "dp=2 ep=2 data_parallel=zero3"}},
    {"groups, SGD", "gl", "groups=true", {"dp=3 data_parallel=zero3", "tp=2", "pp=2 micro=2"}},
    {"groups, lion", "p", "groups=true optimizer=lion lr=0.003", {"dp=3 data_parallel=zero3", "dp=2"}},
    {"groups, tied", "g", "groups=true tied=true", {"pp=2 dp=2 data_parallel=zero3 micro=2", "tp=2"}},
    {"frozen",
     "gl",
     "frozen=block0.*|*.up.*|embed* optimizer=adamw lr=0.003 clip=0.5",
     {"dp=2 tp=2 data_parallel=zero3", "dp=3", "dp=2 data_parallel=zero1 micro=2", "dp=3 data_parallel=zero2",
      "dp=3 data_parallel=zero3 micro=2", "dp=2 data_parallel=keep", "dp=2 data_parallel=whole",
      "replicate=2 dp=2 data_parallel=zero3", "tp=3", "tp=2 sequence=true", "pp=3 micro=2",
      "pp=3 micro=3 schedule=zb_h1", "pp=2 dp=2 data_parallel=zero3 micro=3",
      "pp=2 layers=4 schedule=interleaved micro=2", "dp=2 recompute=blocks",
      "dp=2 data_parallel=zero3 recompute=blocks again=true", "dp=2 data_parallel=zero3 offload=true",
      "dp=2 offload=true", "cp=2 context=12 batch=12"}},
    {"frozen first stages",
     "gl",
     "frozen=embed*|block0.*|block1.*",
     {"pp=3 micro=3", "dp=2 data_parallel=zero3", "pp=3 micro=3 schedule=zb_h1", "pp=2 layers=4 schedule=zb_v micro=4",
      "pp=3 transfer=put micro=2", "pp=3 dp=2 data_parallel=zero3 micro=2"}},
    {"frozen last stages", "gl", "frozen=head*|block2.*", {"pp=3 micro=2", "dp=2 data_parallel=zero3"}},
    {"frozen, tied",
     "g",
     "frozen=*token* tied=true",
     {"pp=2 micro=2", "dp=2 data_parallel=zero3", "pp=2 dp=2 data_parallel=zero3 micro=2", "tp=2"}},
    {"frozen experts", "m", "frozen=*.up.*|*.router.*", {"dp=2 ep=2 data_parallel=zero3", "ep=2", "dp=2"}},
    {"frozen up to a router", "m", "frozen=embed*|block0.*", {"dp=2 ep=2 data_parallel=zero3", "dp=2"}},
    {"lora",
     "gl",
     "lora=*.qkv|*.proj|*.down optimizer=adamw lr=0.003 clip=0.5",
     {"dp=2 tp=2 data_parallel=zero3",
      "micro=3",
      "tp=3",
      "tp=2 sequence=true",
      "dp=3",
      "dp=2 data_parallel=zero1 micro=2",
      "dp=3 data_parallel=zero2",
      "dp=3 data_parallel=zero3 micro=2",
      "dp=2 data_parallel=keep",
      "dp=2 data_parallel=whole",
      "replicate=2 dp=2 data_parallel=zero3",
      "pp=3 micro=2",
      "pp=3 micro=3 schedule=zb_h1",
      "pp=2 dp=2 tp=2 data_parallel=zero3 micro=3",
      "pp=2 layers=4 schedule=interleaved micro=2",
      "dp=2 recompute=blocks tp=2 micro=2",
      "dp=2 data_parallel=zero3 recompute=blocks again=true",
      "dp=2 tp=2 data_parallel=zero3 offload=true",
      "cp=2 context=12 batch=12",
      "cp=2 tp=2 context=12 batch=12"}},
    {"lora with dropout and a trained head",
     "gl",
     "lora=block*.qkv|block1.up|*.proj train=head*|*.ln1.* adapter_dropout=0.2 lr=0.3",
     {"dp=2 tp=2 data_parallel=zero3 micro=2", "tp=2 sequence=true", "pp=3 micro=3", "dp=2 micro=3",
      "cp=2 context=12 batch=12"}},
    {"zero1, lion", "p", "data_parallel=zero1 optimizer=lion lr=0.003 clip=0.5", {"dp=2", "dp=3 micro=2"}},
    {"zero2, lion", "p", "data_parallel=zero2 optimizer=lion lr=0.003", {"dp=2", "dp=3 micro=2"}},
    {"zero3, lion", "p", "data_parallel=zero3 optimizer=lion lr=0.003", {"dp=2", "dp=3 micro=2"}},
    {"zero3, kept after forward", "gl", "data_parallel=keep", {"dp=2 micro=3", "dp=4"}},
    {"zero3, kept in groups after forward",
     "glm",
     "data_parallel=group optimizer=adamw lr=0.003 clip=0.5",
     {"replicate=2 dp=2 tp=2 micro=2", "replicate=2 dp=3 micro=2", "replicate=3 dp=2", "replicate=2 dp=4 groups=true",
      "replicate=2 dp=2 recompute=blocks again=true micro=2", "replicate=2 dp=2 data_parallel=group_whole"}},
    {"zero3, kept in groups after forward x others",
     "gl",
     "data_parallel=group optimizer=adamw lr=0.003 clip=0.5",
     {"pp=2 replicate=2 dp=2 micro=3", "replicate=2 dp=2 cp=2 context=12", "replicate=2 dp=2 tied=true micro=2",
      "pp=2 replicate=2 dp=2 tied=true micro=2", "replicate=2 dp=2 offload=true", "replicate=2 dp=2 wire=f32 clip=0",
      "replicate=1 dp=3 micro=2", "replicate=3 dp=1 micro=2", "replicate=1 dp=1",
      "replicate=2 dp=2 frozen=block0.*|*.up.*|embed*", "pp=2 replicate=2 dp=2 tp=2 micro=3 schedule=zb_h1"}},
    {"zero3, kept in groups after forward x ep", "xm", "data_parallel=group", {"replicate=2 dp=2 ep=2"}},
    {"zero3, prefetch 3", "gl", "data_parallel=ahead", {"dp=3 micro=2", "dp=4"}},
    {"zero3, small parameters whole", "gl", "data_parallel=whole", {"dp=2 micro=3", "dp=3"}},
    {"zero3, small parameters and experts whole", "xm", "data_parallel=most", {"dp=2 ep=2", "dp=2 ep=4", "dp=3"}},
    {"hybrid sharding",
     "glp",
     "data_parallel=zero3",
     {"replicate=2 dp=2", "replicate=2 dp=4 micro=3", "replicate=4 dp=2"}},
    {"tp", "glmp", "", {"tp=3", "tp=2", "tp=4", "tp=2 micro=3"}},
    {"offload",
     "gm",
     "offload=true optimizer=adamw lr=0.003 clip=0.5",
     {"dp=2 data_parallel=zero3 micro=2", "dp=2", "dp=3 data_parallel=zero1", "dp=2 data_parallel=zero2", "dp=2 tp=2",
      "dp=2 data_parallel=whole", "replicate=2 dp=2 data_parallel=zero3"}},
    {"offload x 1f1b", "g", "offload=true optimizer=adamw lr=0.003", {"pp=2 dp=2 micro=3 data_parallel=zero3"}},
    {"tp, AdamW, clipped", "gl", "optimizer=adamw lr=0.003 clip=0.5", {"tp=2", "dp=2 tp=2"}},
    {"tp with shared keys", "l", "kv_heads=4", {"tp=2", "tp=4"}},
    {"tp + sequence", "gl", "sequence=true", {"tp=2", "tp=4", "tp=2 micro=3"}},
    {"tied", "gl", "tied=true", {"dp=3", "tp=2", "tp=3", "pp=2 micro=3", "pp=3 micro=2", "dp=2 data_parallel=zero3"}},
    {"tied, and nothing else on the last rank",
     "gl",
     "tied=true clip=0.5 split=flops layers=2",
     {"pp=4 micro=2", "pp=4 dp=2 micro=2 data_parallel=zero3", "pp=4 schedule=zb_h1 micro=4"}},
    {"tied, recomputed", "gl", "tied=true recompute=head", {"dp=2", "pp=2 micro=2", "dp=2 data_parallel=zero3"}},
    {"a unit on every rank",
     "awt",
     "clip=0.3",
     {"pp=3 micro=2", "pp=2 micro=3", "pp=3 dp=2 data_parallel=zero3 micro=2",
      "pp=3 dp=2 data_parallel=zero2 schedule=zb_h1", "pp=3 data_parallel=whole dp=2 micro=2",
      "pp=2 layers=4 schedule=interleaved micro=4 split=flops", "pp=3 transfer=put", "dp=2 data_parallel=zero3",
      "dp=3 data_parallel=zero1", "pp=2 dp=2 data_parallel=zero1 layers=4 schedule=zb_h1 micro=4"}},
    {"skips over stages",
     "ur",
     "layers=4",
     {"pp=4 micro=3", "pp=4", "pp=2 schedule=interleaved micro=3", "pp=2 schedule=zb_v micro=2",
      "pp=3 dp=2 data_parallel=zero3 micro=2 schedule=zb_h1", "pp=4 transfer=put micro=2",
      "pp=2 recompute=layer micro=3"}},
    {"a rank without parameters",
     "b",
     "layers=4 clip=0.3",
     {"pp=3 micro=2", "pp=2 dp=2 data_parallel=zero3 schedule=zb_h1 micro=3"}},
    {"norms of the batch, norms at the end",
     "rn",
     "",
     {"dp=2", "recompute=layer", "dp=2 data_parallel=zero3 recompute=layer", "tp=2",
      "pp=3 schedule=zb_h1 dp=2 data_parallel=zero2 micro=2"}},
    {"dropout", "g", "dropout=0.2", {"dp=2 tp=2", "dp=3", "tp=2 sequence=true", "pp=2 micro=3", "dp=2 micro=3"}},
    {"ddp x tp", "glp", "", {"dp=2 tp=2", "dp=4 tp=2", "dp=2 tp=4", "dp=2 tp=2 micro=3"}},
    {"ddp x tp + sequence", "gl", "sequence=true", {"dp=2 tp=2", "dp=2 tp=4 micro=3"}},
    {"zero1 x tp", "gl", "data_parallel=zero1", {"dp=2 tp=2", "dp=2 tp=4"}},
    {"zero2 x tp", "gl", "data_parallel=zero2", {"dp=2 tp=2", "dp=2 tp=4"}},
    {"zero3 x tp", "gl", "data_parallel=zero3", {"dp=2 tp=2", "dp=2 tp=4 sequence=true", "dp=4 tp=2"}},
    {"gpipe", "glp", "schedule=gpipe", {"pp=2 micro=3", "pp=2", "pp=3 micro=2", "pp=3 micro=4"}},
    {"1f1b", "glmp", "schedule=1f1b", {"pp=2 micro=3", "pp=2", "pp=3 micro=2", "pp=3 micro=4"}},
    {"1f1b of 4, by work", "gl", "layers=5 split=flops", {"pp=4 micro=3", "pp=4 micro=6", "pp=4"}},
    {"1f1b, AdamW, clipped", "gl", "schedule=1f1b optimizer=adamw lr=0.003 clip=0.5", {"pp=2 micro=3", "pp=3 micro=2"}},
    {"interleaved", "gl", "layers=7 schedule=interleaved", {"pp=2 micro=3", "pp=2", "pp=3 micro=4", "pp=3 micro=2"}},
    {"zb_h1", "glp", "schedule=zb_h1", {"pp=2 micro=3", "pp=2", "pp=3 micro=2", "pp=3 micro=4"}},
    {"zb_v", "gl", "layers=7 schedule=zb_v", {"pp=2 micro=3", "pp=2", "pp=3 micro=4", "pp=3 micro=2"}},
    {"dualpipe_v", "gl", "layers=7 schedule=dualpipe_v", {"pp=2 micro=6", "pp=2", "pp=3 micro=8", "pp=3 micro=2"}},
    {"dualpipe_v x others",
     "gl",
     "layers=5 schedule=dualpipe_v",
     {"pp=2 tp=2 micro=6", "pp=2 dp=2 data_parallel=zero1 micro=6", "pp=2 dp=2 data_parallel=keep micro=6",
      "pp=2 recompute=blocks micro=6", "pp=2 tp=2 sequence=true micro=6 recompute=blocks"}},
    {"dualpipe_v x ep", "m", "layers=4 schedule=dualpipe_v", {"pp=2 ep=2 micro=6", "pp=2 ep=2 tp=2 micro=6"}},
    {"put",
     "gl",
     "layers=7 transfer=put",
     {"pp=2 micro=3", "pp=3 schedule=zb_v micro=4", "pp=2 schedule=interleaved micro=3"}},
    {"pipeline of 8", "g", "layers=8", {"pp=8 micro=3", "pp=8 micro=12", "pp=8 schedule=zb_h1 micro=4"}},
    {"1f1b x ddp", "gl", "", {"pp=2 dp=2 micro=3", "pp=2 dp=4 micro=2"}},
    {"1f1b x zero1", "g", "data_parallel=zero1", {"pp=2 dp=2 micro=3"}},
    {"1f1b x zero2", "g", "data_parallel=zero2", {"pp=2 dp=2 micro=3"}},
    {"1f1b x zero3", "gl", "data_parallel=zero3", {"pp=2 dp=2 micro=3", "pp=2 dp=4 micro=2"}},
    {"1f1b x tp", "gl", "", {"pp=2 tp=2 micro=3", "pp=2 tp=2 micro=3 sequence=true"}},
    {"zb_h1 x ddp", "g", "schedule=zb_h1", {"pp=2 dp=2 micro=3"}},
    {"zb_v x tp", "g", "layers=5 schedule=zb_v", {"pp=2 tp=2 micro=3"}},
    {"interleaved x zero3", "g", "layers=5 schedule=interleaved data_parallel=zero3", {"pp=2 dp=2 micro=3"}},
    {"1f1b x ddp x tp", "gl", "", {"pp=2 dp=2 tp=2 micro=3", "pp=2 dp=2 tp=2 sequence=true micro=3"}},
    {"1f1b x zero3 x tp", "gl", "data_parallel=zero3", {"pp=2 dp=2 tp=2 micro=3"}},
    {"cp", "glm", "context=24 batch=6", {"cp=3", "cp=2", "cp=4", "cp=2 micro=3"}},
    {"cp of 8", "gl", "context=16 batch=6", {"cp=8"}},
    {"cp x ddp", "gl", "context=12 batch=12", {"dp=2 cp=2", "dp=2 cp=3 micro=2"}},
    {"cp x zero3", "gl", "context=12 batch=12 data_parallel=zero3", {"dp=2 cp=2"}},
    {"cp x tp", "gl", "context=12 batch=6", {"cp=2 tp=2", "cp=2 tp=3"}},
    {"cp x tp + sequence",
     "gl",
     "context=24 batch=12 dropout=0.2 sequence=true",
     {"cp=2 tp=2 micro=2", "cp=3 tp=2", "cp=2 tp=4", "pp=2 cp=2 tp=2 micro=3", "dp=2 cp=2 tp=2 data_parallel=zero3"}},
    {"cp x 1f1b", "gl", "context=12 batch=6", {"pp=2 cp=2 micro=3"}},
    {"experts over the axes of others",
     "mx",
     "",
     {"dp=2 fold=dp",
      "dp=4 fold=dp micro=2",
      "dp=2 fold=dp data_parallel=zero3",
      "dp=2 fold=dp data_parallel=zero1",
      "dp=2 fold=dp data_parallel=zero2 micro=3",
      "replicate=2 dp=2 fold=dp data_parallel=zero3",
      "replicate=2 dp=2 fold=replicate data_parallel=zero3",
      "dp=2 fold=dp data_parallel=whole",
      "dp=2 fold=dp data_parallel=keep micro=2",
      "cp=2 fold=cp context=12 batch=12",
      "dp=2 cp=2 fold=dp,cp context=12 batch=12",
      "dp=2 cp=2 fold=dp data_parallel=zero3 context=12 batch=12",
      "dp=2 tp=2 fold=dp data_parallel=zero3",
      "dp=2 ep=2 fold=dp data_parallel=zero3",
      "pp=2 dp=2 fold=dp data_parallel=zero3 micro=2",
      "dp=2 fold=dp recompute=blocks",
      "tp=2 fold=tp",
      "tp=2 fold=tp sequence=true",
      "tp=4 fold=tp micro=2",
      "dp=2 tp=2 fold=tp data_parallel=zero3",
      "dp=2 tp=2 fold=dp,tp",
      "dp=2 tp=2 fold=dp,tp data_parallel=zero3 sequence=true micro=2",
      "ep=2 tp=2 fold=tp",
      "cp=2 tp=2 fold=cp,tp context=12 batch=12",
      "pp=2 tp=2 fold=tp micro=2",
      "tp=2 fold=tp recompute=blocks"}},
    {"experts over the axes of others, AdamW",
     "m",
     "optimizer=adamw lr=0.003 clip=0.5",
     {"dp=2 tp=2 fold=dp data_parallel=zero3 offload=true", "dp=2 fold=dp data_parallel=zero1"}},
    {"experts over the axes of others, Muon", "m", "optimizer=muon lr=0.02", {"dp=2 fold=dp data_parallel=zero3"}},
    {"ep", "m", "", {"ep=2", "ep=4", "ep=2 micro=3", "ep=3 experts=6", "ep=8 experts=8"}},
    {"ep, AdamW, clipped", "m", "optimizer=adamw lr=0.003 clip=0.5", {"ep=2", "dp=2 ep=2"}},
    {"ep x ddp", "m", "", {"dp=2 ep=2", "dp=2 ep=4 micro=3"}},
    {"ep x zero3", "m", "data_parallel=zero3", {"dp=2 ep=2"}},
    {"ep, dropless", "mx", "capacity=0.5 dropless=true", {"ep=2", "ep=4 experts=8", "micro=3", "dp=2 micro=2"}},
    {"ep x tp, dropless", "xm", "capacity=0.5 dropless=true", {"ep=2 tp=2", "tp=3", "dp=2 ep=2 tp=2 sequence=true"}},
    {"ep x zero3, dropless, recomputed",
     "mx",
     "capacity=0.5 dropless=true data_parallel=zero3 recompute=blocks",
     {"dp=2 ep=2 micro=2", "dp=2 ep=2", "dp=3"}},
    {"ep x pipelines, dropless",
     "mx",
     "capacity=0.5 dropless=true",
     {"pp=2 ep=2 micro=3", "pp=2 micro=3 schedule=zb_h1", "pp=2 ep=2 layers=4 schedule=dualpipe_v micro=6",
      "cp=2 ep=2 context=12 batch=12"}},
    {"experts over the axes of others, dropless",
     "mx",
     "capacity=0.5 dropless=true",
     {"tp=2 fold=tp", "dp=2 fold=dp data_parallel=zero3 micro=2", "dp=2 tp=2 fold=dp,tp sequence=true",
      "ep=2 tp=2 fold=tp", "dp=2 cp=2 fold=dp,cp context=12 batch=12", "tp=2 fold=tp recompute=blocks micro=2",
      "pp=2 tp=2 fold=tp micro=2"}},
    {"ep x tp", "m", "", {"ep=2 tp=2", "dp=2 ep=2 tp=2"}},
    {"ep x cp", "m", "context=12 batch=12", {"cp=2 ep=2"}},
    {"ep x 1f1b", "m", "", {"pp=2 ep=2 micro=3"}},
    {"views",
     "ijhk",
     "layers=2",
     {"dp=2 pp=2 micro=3 data_parallel=zero3", "dp=3", "micro=4", "dp=2 data_parallel=zero1 micro=2",
      "pp=2 micro=2 schedule=zb_h1"}},
    {"convolutions",
     "cs",
     "layers=2",
     {"dp=2 pp=2 micro=3 data_parallel=zero3", "dp=3", "micro=4", "dp=2 data_parallel=zero1 micro=2",
      "dp=2 data_parallel=zero2", "dp=2 data_parallel=zero3 recompute=layer", "pp=2 micro=2 schedule=zb_h1"}},
    {"views, recomputed", "ji", "layers=2", {"dp=2 recompute=layer"}},
    {"rows by ids", "kh", "layers=2", {"dp=2 recompute=blocks", "dp=2 pp=2 micro=3 data_parallel=zero3"}},
    {"gated heads",
     "y",
     "layers=2",
     {"cp=2 tp=2", "dp=2 tp=2", "tp=2 sequence=true", "cp=2", "pp=2 micro=2",
      "dp=2 data_parallel=zero3 recompute=blocks"}},
    {"views that ops read with strides",
     "z",
     "layers=2",
     {"dp=2 tp=2", "tp=3", "dp=3 micro=2", "pp=2 tp=2 micro=2", "dp=2 data_parallel=zero3 recompute=blocks"}},
    {"views of heads",
     "h",
     "layers=2 context=12",
     {"dp=2 tp=2", "tp=4", "tp=2 sequence=true", "tp=3 micro=2", "cp=2", "cp=2 tp=2", "pp=2 tp=2 micro=2",
      "dp=2 tp=2 data_parallel=zero3 recompute=blocks"}},
};

std::vector<ProductCase> composed() {
  std::vector<ProductCase> cases;
  for (const Row& row : kRows) {
    for (const char model : std::string(row.models)) {
      const std::string name = kModels.at(model);
      for (const char* mesh : row.meshes) {
        ProductCase one;
        one.strategy = row.strategy;
        one.model = name;
        one.mesh = mesh;
        one.settings = settings_of(fmt::format("model={} {} {}", name, row.common, mesh));
        one.yardstick = yardstick_of(one.settings);
        one.ranks = ranks_of(one.settings);
        one.some = model == row.models[0] && mesh == row.meshes.front();
        cases.push_back(std::move(one));
      }
    }
  }
  return cases;
}

struct PlanRow {
  const char* plan;
  const char* sizes;     // also on one rank
  const char* one_rank;  // axes of size 1, where the plan has arguments for them
  std::vector<std::pair<int, const char*>> meshes;
};

constexpr const char* kGpt = "layers=4 width=24 heads=12 context=6 batch=48 steps=5 dtype=f64";
constexpr const char* kRing = "layers=4 width=24 heads=12 context=12 batch=24 steps=5 dtype=f64";
constexpr const char* kMlp = "layers=4 width=24 batch=24 steps=5 dtype=f64";

const std::vector<PlanRow> kPlans = {
    {"ddp", kGpt, "", {{3, ""}, {8, ""}}},
    {"zero1", kGpt, "", {{3, ""}, {8, ""}}},
    {"zero2", kGpt, "", {{3, ""}, {8, ""}}},
    {"zero3", kGpt, "", {{3, ""}, {8, ""}}},
    {"fsdp", kGpt, "", {{3, ""}, {4, "replicate=2"}}},
    {"megatron", kGpt, "tp=1", {{2, ""}, {4, "tp=2"}, {3, "tp=3"}}},
    {"1f1b", kGpt, "pp=1", {{2, ""}, {4, "pp=4"}, {4, "pp=2"}, {3, "pp=3"}}},
    {"interleaved", kGpt, "pp=1", {{2, ""}, {4, "pp=2"}}},
    {"zero_bubble", kGpt, "pp=1", {{2, ""}, {4, "pp=2 schedule=zb_v"}, {2, "schedule=zb_v"}}},
    {"one_sided", kGpt, "pp=1", {{2, ""}, {4, "pp=4"}, {4, "pp=2 schedule=zb_v"}}},
    {"ring_attention", kRing, "cp=1", {{2, ""}, {3, "cp=3"}, {4, "cp=2"}}},
    {"moe", kGpt, "ep=1", {{2, ""}, {4, "ep=4"}, {4, "ep=2"}}},
    {"3d", kGpt, "pp=1 tp=1", {{8, ""}, {4, ""}}},
    {"dp", kMlp, "", {{2, ""}, {3, ""}}},
    {"tp", kMlp, "tp=1", {{2, ""}, {4, "tp=2"}, {3, "tp=3"}}},
    {"pp", kMlp, "pp=1", {{2, ""}, {4, "pp=4"}}},
    {"custom/small_whole", kGpt, "", {{2, ""}, {3, "micro=2"}}},
    {"custom/eager_1f1b", kGpt, "pp=1", {{2, ""}, {4, "pp=4"}}},
};

// The valid cases of laws.lua, with their numbers of ranks.
const std::vector<std::pair<const char*, int>> kTwins = {
    {"tokens_summed", 2},
    {"token_shards_summed", 2},
    {"summed_beside_an_average", 2},
    {"stages_averaged", 4},
    {"gradients_of_stages_added", 4},
    {"experts_averaged", 2},
    {"columns_averaged", 4},
    {"blocks_forgotten", 4},
    {"blocks_forgotten_in_a_ring", 4},
    {"turned_columns", 4},
    {"blocks_of_halves", 4},
    {"kv_blocks_of_queries", 4},
    {"cuts_added", 4},
    {"cuts_gated", 4},
    {"blocks_into_rows", 4},
    {"blocks_into_a_plain_layer", 4},
    {"blocks_dropped_out", 4},
    {"blocks_of_a_vocabulary", 4},
    {"turned_heads_uneven", 4},
    {"parts_averaged", 4},
    {"shards_of_parts_averaged", 4},
    {"shards_of_parts_added", 4},
};

std::vector<ProductCase> twins() {
  std::vector<ProductCase> cases;
  for (const auto& [name, ranks] : kTwins) {
    ProductCase one;
    one.plan = "tests/parity/laws.lua";
    one.strategy = "twins of what is refused";
    one.model = "of the case";
    one.mesh = name;
    one.ranks = ranks;
    one.settings = {{"case", name}};
    one.yardstick = {{"case", name}, {"n", "1"}};
    one.some = true;
    cases.push_back(std::move(one));
  }
  return cases;
}

std::vector<ProductCase> shipped() {
  std::vector<ProductCase> cases;
  for (const PlanRow& row : kPlans) {
    for (const auto& [ranks, mesh] : row.meshes) {
      ProductCase one;
      one.plan = fmt::format("plans/{}.lua", row.plan);
      one.strategy = one.plan;
      one.model = "of the plan";
      one.mesh = fmt::format("{} ranks{}{}", ranks, *mesh ? ", " : "", mesh);
      one.ranks = ranks;
      one.settings = settings_of(fmt::format("{} {}", row.sizes, mesh));
      one.yardstick = settings_of(fmt::format("{} {}", row.sizes, row.one_rank));
      one.some = mesh == row.meshes.front().second && ranks == row.meshes.front().first;
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

}  // namespace

std::vector<ProductCase> product_cases() {
  std::vector<ProductCase> cases = composed();
  for (const std::vector<ProductCase>& more : {shipped(), twins()}) cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

}  // namespace prun::test
