#include "elsewhere.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

namespace prun {
namespace {

constexpr std::string_view kNothing = "nothing: ";  // the rest is the reason

// Options of torchrun, DeepSpeed, accelerate, Megatron-LM and launchers, separated by spaces, and their counterpart.
constexpr std::pair<const char*, const char*> kElsewhereOptions[] = {
    {"--nproc-per-node --num-gpus --np -n -np", "--nproc"},
    {"--world-size --ntasks --num-processes", "--nproc, of each of --nnodes"},
    {"--gpus", "--nproc, and --device cuda"},
    {"--num-nodes --num-machines -N", "--nnodes"},
    {"--rank --machine-rank", "--node-rank"},
    {"--local-rank", "nothing: prun starts the ranks of a node itself"},
    {"--rdzv-endpoint --rdzv-conf --master-addr --master-port --main-process-ip --main-process-port",
     "--rendezvous HOST:PORT"},
    {"--rdzv-backend --rdzv-id", "nothing: --rendezvous HOST:PORT is all"},
    {"--rdzv-timeout --distributed-timeout-minutes", "--timeout SECONDS"},
    {"--hostfile", "--rendezvous HOST:PORT, on each node"},
    {"--standalone", "nothing: without --rendezvous all ranks are here"},
    {"--min-nodes", "--min-ranks M, of all nodes"},
    {"--backend --distributed-backend", "--transport"},
    {"--config --run-path", "a plan, and --set NAME=VALUE"},
    {"--deepspeed --deepspeed-config --zero-stage", "a plan with prun.zero1, zero2 or zero3"},
    {"--use-distributed-optimizer", "a plan with prun.zero1 instead of prun.ddp"},
    {"--overlap-grad-reduce --overlap-param-gather", "nothing: transfers overlap with compute always"},
    {"--use-flash-attn --attention-backend", "nothing: attention never keeps its scores"},
    {"--sequence-parallel", "a plan with prun.tensor_parallel { sequence = true }"},
    {"--recompute-granularity --recompute-activations --gradient-checkpointing",
     "a plan with prun.recompute { units = { \"block\" } }"},
    {"--output-dir --save --save-dir --checkpoint-dir", "--checkpoint DIR"},
    {"--load --resume-from-checkpoint --resume-from --load-dir", "--resume auto|PATH"},
    {"--logging-dir --log-dir", "--runs DIR"},
    {"--tensorboard-dir --tensorboard", "--metrics FILE, which tools/tensorboard converts"},
    {"--wandb --wandb-project --report-to", "--runs DIR, or --metrics FILE"},
    {"--save-steps --save-interval --save-every", "--checkpoint-every K"},
    {"--save-total-limit", "--checkpoint-keep N"},
    {"--detect-anomaly --check-for-nan-in-loss-and-grad", "--check-finite"},
    {"--profile", "--trace FILE"},
    {"--lr-decay-style --lr-warmup-iters --lr-scheduler-type --warmup-steps",
     "a plan with lr = prun.cosine { lr = X, warmup = N }"},
    {"--eval-interval --eval-iters", "a plan with prun.eval { every = N, batches = N }"},
    {"--tokenizer-type --tokenizer-model --vocab-file", "tools/tokenize, which makes token files"},
    {"--cpu", "--device cpu, the default"},
    {"--cuda", "--device cuda"},
    {"--redirects --tee", "--runs DIR, which keeps a log"},
    {"--bind-to --cpu-bind", "--bind core|numa|none"},
    {"--mca", "--transport-options K=V,.."},
    {"--fsdp", "a plan with prun.fsdp or prun.zero3"},
    {"--compile", "nothing: every plan is compiled"},
    {"--devices", "--nproc"},
    {"--accelerator", "--device"},
    {"--strategy", "a strategy of the plan"},
    {"--num-workers", "nothing: the data are mapped into memory and prefetched"},
    {"--verbose -v", "--log-level info"},
};

// Options that are arguments of most plans.
constexpr SettingHere kElsewhereSettings[] = {
    {"--tensor-model-parallel-size", "tp", "N", "the mesh (tp = N) and prun.tensor_parallel"},
    {"--pipeline-model-parallel-size", "pp", "N", "the mesh (pp = N) and prun.pipeline"},
    {"--mixed-precision", "dtype", "bf16", "prun.plan { dtype = \"bf16\" }"},
    {"--bf16", "dtype", "bf16", "prun.plan { dtype = \"bf16\" }"},
    {"--amp", "dtype", "bf16", "prun.plan { dtype = \"bf16\" }"},
    {"--weight-decay", "weight_decay", "X", "weight_decay of the optimizer"},
    {"--fp16", "dtype", "bf16", "prun.plan { dtype = \"bf16\" }"},
    {"--lr", "lr", "X", "lr of the optimizer"},
    {"--learning-rate", "lr", "X", "lr of the optimizer"},
    {"--epochs", "steps", "EPOCHS*SAMPLES/BATCH", "steps of prun.plan"},
    {"--steps", "steps", "N", "steps of prun.plan"},
    {"--max-steps", "steps", "N", "steps of prun.plan"},
    {"--max-iters", "steps", "N", "steps of prun.plan"},
    {"--train-iters", "steps", "N", "steps of prun.plan"},
    {"--dtype", "dtype", "bf16", "prun.plan { dtype = \"bf16\" }"},
    {"--precision", "dtype", "bf16", "prun.plan { dtype = \"bf16\" }"},
    {"--data-path", "data", "FILE", "path of the data"},
    {"--dataset", "data", "FILE", "path of the data"},
    {"--num-layers", "layers", "N", "layers of the model"},
    {"--hidden-size", "width", "N", "width of the model"},
    {"--num-attention-heads", "heads", "N", "heads of the model"},
    {"--seq-length", "context", "N", "context of the model"},
    {"--seq-len", "context", "N", "context of the model"},
    {"--block-size", "context", "N", "context of the model"},
    {"--global-batch-size", "batch", "N", "batch of the data"},
    {"--gradient-accumulation-steps", "micro", "N", "micro of prun.plan"},
    {"--batch-size", "batch", "N", "batch of the data"},
    {"--tp-size", "tp", "N", "the mesh (tp = N) and prun.tensor_parallel"},
    {"--pp-size", "pp", "N", "the mesh (pp = N) and prun.pipeline"},
    {"--context-parallel-size", "cp", "N", "the mesh (cp = N) and prun.context_parallel"},
    {"--expert-model-parallel-size", "ep", "N", "the mesh (ep = N) and prun.expert_parallel"},
    {"--ep-size", "ep", "N", "the mesh (ep = N) and prun.expert_parallel"},
    {"--num-experts", "experts", "N", "experts of the model"},
    {"--clip-grad", "clip", "X", "clip of the optimizer"},
    {"--max-grad-norm", "clip", "X", "clip of the optimizer"},
    {"--gradient-clipping", "clip", "X", "clip of the optimizer"},
    {"--num-train-epochs", "steps", "EPOCHS*SAMPLES/BATCH", "steps of prun.plan"},
    {"--data", "data", "FILE", "path of the data"},
    {"--max-position-embeddings", "context", "N", "context of the model"},
    {"--train-batch-size", "batch", "N", "batch of the data"},
    {"--micro-batch-size", "micro", "MICROBATCHES", "micro of prun.plan, the number of microbatches"},
    {"--per-device-train-batch-size", "micro", "MICROBATCHES", "micro of prun.plan, the number of microbatches"},
    {"--train-micro-batch-size-per-gpu", "micro", "MICROBATCHES", "micro of prun.plan, the number of microbatches"},
    {"--seed", "seed", "N", "seed of prun.plan"},
};

// {0} is the plan.
constexpr std::pair<const char*, const char*> kElsewhereCommands[] = {
    {"run", "prun {0}, without this word"},
    {"train", "prun {0}, without this word"},
    {"fit", "prun {0}, without this word"},
    {"start", "prun {0}, without this word"},
    {"launch", "prun {0}, without this word"},
    {"exec", "prun {0}, without this word"},
    {"resume", "to go on from a checkpoint: prun PLAN --checkpoint DIR --resume auto"},
    {"torchrun", "prun starts the ranks itself: prun PLAN --nproc N"},
    {"mpirun", "prun starts the ranks itself: prun PLAN --nproc N"},
    {"deepspeed", "prun starts the ranks itself: prun PLAN --nproc N"},
    {"accelerate", "prun starts the ranks itself: prun PLAN --nproc N"},
    {"python", "prun runs plans, which are Lua: prun PLAN"},
    {"pip", "prun is built from its clone: ./tools/run PLAN"},
    {"python3", "prun runs plans, which are Lua: prun PLAN"},
    {"verify", "prun check {0}; of a checkpoint: prun ckpt verify DIR"},
    {"validate", "prun check {0}"},
    {"test", "prun check {0}"},
    {"prove", "prun check {0}"},
    {"lint", "prun check {0}"},
    {"simulate", "prun sim {0} --cluster FILE"},
    {"predict", "prun sim {0} --cluster FILE"},
    {"profile", "prun {0} --trace FILE"},
    {"trace", "prun {0} --trace FILE"},
    {"compile", "prun dump {0} prints the program"},
    {"show", "prun dump {0} prints the program"},
    {"compare", "prun diff {0} PLAN"},
    {"plot", "prun draw {0}"},
    {"graph", "prun draw {0}"},
    {"benchmark", "prun bench OP"},
    {"infer", "prun generate {0}"},
    {"sample", "prun generate {0}"},
    {"eval", "a plan evaluates with prun.eval while it trains"},
    {"export", "prun ckpt export DIR --format hf --out FOLDER"},
    {"import", "prun ckpt import FOLDER --out DIR"},
    {"checkpoint", "prun ckpt ls DIR, or prun {0} --checkpoint DIR"},
    {"ps", "prun status"},
    {"top", "prun status"},
    {"jobs", "prun status"},
    {"list", "prun plans, prun runs, prun status"},
    {"ls", "prun plans, prun runs, prun status"},
    {"info", "prun version, prun doctor"},
    {"env", "prun version, prun doctor"},
    {"new", "prun init [FOLDER]"},
    {"create", "prun init [FOLDER]"},
};

// Commands of a folder with checkpoints.
constexpr std::pair<const char*, const char*> kOfCheckpoints[] = {
    {"verify", "verify"}, {"validate", "verify"}, {"test", "verify"},  {"show", "show"},       {"info", "show"},
    {"list", "ls"},       {"ls", "ls"},           {"compare", "diff"}, {"reshard", "reshard"}, {"export", "export"},
};

struct ElsewhereValue {
  const char *option, *theirs, *ours;
};
constexpr ElsewhereValue kElsewhereValues[] = {
    {"--device", "gpu", "cuda"},     {"--device", "gpus", "cuda"},      {"--device", "nvidia", "cuda"},
    {"--device", "host", "cpu"},     {"--transport", "gloo", "socket"}, {"--transport", "tcp", "socket"},
    {"--transport", "mpi", "auto"},  {"--transport", "ib", "ucx"},      {"--transport", "rdma", "ucx"},
    {"--transport", "verbs", "ucx"},
};

}  // namespace

std::string option_here(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  for (const auto& [theirs, ours] : kElsewhereOptions)
    if (fmt::format(" {} ", theirs).find(fmt::format(" {} ", name)) != std::string::npos) {
      const std::string text = ours;
      return text.starts_with(kNothing) ? fmt::format(" ({})", text.substr(kNothing.size()))
                                        : fmt::format(" (here: {})", text);
    }
  return "";
}

const SettingHere* setting_here(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  for (const SettingHere& row : kElsewhereSettings)
    if (name == row.theirs) return &row;
  return nullptr;
}

std::string command_here(const std::string& name, const std::string& plan) {
  for (const auto& [theirs, verb] : kOfCheckpoints)
    if (name == theirs && std::filesystem::is_directory(plan)) return fmt::format("prun ckpt {} {}", verb, plan);
  for (const auto& [theirs, ours] : kElsewhereCommands)
    if (name == theirs) return fmt::format(fmt::runtime(ours), plan);
  return "";
}

std::string value_here(const std::string& option, const std::string& value) {
  for (const ElsewhereValue& row : kElsewhereValues)
    if (option == row.option && value == row.theirs) return fmt::format(" (here: {})", row.ours);
  return "";
}

}  // namespace prun
