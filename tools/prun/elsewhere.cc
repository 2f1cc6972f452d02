#include "elsewhere.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace prun {
namespace {

constexpr std::string_view kNothing = "nothing: ";  // the rest is the reason

constexpr std::pair<const char*, const char*> kElsewhereOptions[] = {
    {"--nproc-per-node", "--nproc"},
    {"--num-gpus", "--nproc"},
    {"--np", "--nproc"},
    {"--world-size", "--nproc, of each of --nnodes"},
    {"--num-nodes", "--nnodes"},
    {"--rank", "--node-rank"},
    {"--machine-rank", "--node-rank"},
    {"--rdzv-endpoint", "--rendezvous HOST:PORT"},
    {"--rdzv-conf", "--rendezvous HOST:PORT"},
    {"--rdzv-backend", "nothing: --rendezvous HOST:PORT is all"},
    {"--rdzv-id", "nothing: --rendezvous HOST:PORT is all"},
    {"--master-addr", "--rendezvous HOST:PORT"},
    {"--master-port", "--rendezvous HOST:PORT"},
    {"--hostfile", "--rendezvous HOST:PORT, on each node"},
    {"--standalone", "nothing: without --rendezvous all ranks are here"},
    {"--min-nodes", "--min-ranks M, of all nodes"},
    {"--backend", "--transport"},
    {"--config", "a plan, and --set NAME=VALUE"},
    {"--deepspeed", "a plan with prun.zero1, zero2 or zero3"},
    {"--tensor-model-parallel-size", "--set tp=N, where the plan has it"},
    {"--pipeline-model-parallel-size", "--set pp=N, where the plan has it"},
    {"--output-dir", "--checkpoint DIR"},
    {"--logging-dir", "--runs DIR"},
    {"--log-dir", "--runs DIR"},
    {"--save-steps", "--checkpoint-every K"},
    {"--save-interval", "--checkpoint-every K"},
    {"--save-total-limit", "--checkpoint-keep N"},
    {"--resume-from-checkpoint", "--resume auto|PATH"},
    {"--detect-anomaly", "--check-finite"},
    {"--profile", "--trace FILE"},
    {"-n", "--nproc"},
    {"-np", "--nproc"},
    {"--ntasks", "--nproc, of each of --nnodes"},
    {"--num-processes", "--nproc, of each of --nnodes"},
    {"--gpus", "--nproc, and --device cuda"},
    {"--num-machines", "--nnodes"},
    {"-N", "--nnodes"},
    {"--main-process-ip", "--rendezvous HOST:PORT"},
    {"--main-process-port", "--rendezvous HOST:PORT"},
    {"--rdzv-timeout", "--timeout SECONDS"},
    {"--local-rank", "nothing: prun starts the ranks of a node itself"},
    {"--run-path", "a plan, and --set NAME=VALUE"},
    {"--mixed-precision", "--set dtype=bf16, where the plan has it"},
    {"--bf16", "--set dtype=bf16, where the plan has it"},
    {"--fp16", "--set dtype=bf16, where the plan has it: there is no fp16"},
    {"--lr", "--set lr=X, where the plan has it"},
    {"--learning-rate", "--set lr=X, where the plan has it"},
    {"--epochs", "--set steps=N, which is epochs times samples / batch"},
    {"--steps", "--set steps=N, where the plan has it"},
    {"--max-steps", "--set steps=N, where the plan has it"},
    {"--max-iters", "--set steps=N, where the plan has it"},
    {"--train-iters", "--set steps=N, where the plan has it"},
    {"--dtype", "--set dtype=bf16, where the plan has it"},
    {"--precision", "--set dtype=bf16, where the plan has it"},
    {"--data-path", "--set data=FILE, where the plan has it"},
    {"--dataset", "--set data=FILE, where the plan has it"},
    {"--num-layers", "--set layers=N, where the plan has it"},
    {"--hidden-size", "--set width=N, where the plan has it"},
    {"--num-attention-heads", "--set heads=N, where the plan has it"},
    {"--seq-length", "--set context=N, where the plan has it"},
    {"--seq-len", "--set context=N, where the plan has it"},
    {"--block-size", "--set context=N, where the plan has it"},
    {"--global-batch-size", "--set batch=N, where the plan has it"},
    {"--gradient-accumulation-steps", "--set micro=N, where the plan has it"},
    {"--batch-size", "--set batch=N, where the plan has it"},
    {"--seed", "--set seed=N, where the plan has it"},
    {"--cpu", "--device cpu, the default"},
    {"--cuda", "--device cuda"},
    {"--redirects", "--runs DIR, which keeps a log"},
    {"--tee", "--runs DIR, which keeps a log"},
    {"--bind-to", "--bind core|numa|none"},
    {"--cpu-bind", "--bind core|numa|none"},
    {"--mca", "--transport-options K=V,.."},
    {"--wandb", "--runs DIR, or --metrics FILE"},
    {"--wandb-project", "--runs DIR, or --metrics FILE"},
    {"--report-to", "--runs DIR, or --metrics FILE"},
    {"--tensorboard", "--metrics FILE, which tools/tensorboard converts"},
    {"--fsdp", "a plan with prun.fsdp or prun.zero3"},
    {"--compile", "nothing: every plan is compiled"},
    {"--amp", "--set dtype=bf16, where the plan has it"},
    {"--devices", "--nproc"},
    {"--accelerator", "--device"},
    {"--strategy", "a strategy of the plan"},
    {"--num-workers", "nothing: the data are mapped into memory and prefetched"},
    {"--load", "--resume auto|PATH"},
    {"--save", "--checkpoint DIR"},
    {"--gradient-checkpointing", "prun.recompute in the plan"},
    {"--eval-interval", "prun.eval in the plan"},
    {"--warmup-steps", "prun.warmup in the plan"},
    {"--weight-decay", "--set, where the plan has it"},
    {"--verbose", "--log-level info"},
    {"-v", "--log-level info"},
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
    {"verify", "prun check {0}"},
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
    if (name == theirs) {
      const std::string text = ours;
      return text.starts_with(kNothing) ? fmt::format(" ({})", text.substr(kNothing.size()))
                                        : fmt::format(" (here: {})", text);
    }
  return "";
}

std::string command_here(const std::string& name, const std::string& plan) {
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
