#include "elsewhere.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace prun {
namespace {

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
    {"--epochs", "--set steps=N, where the plan has it"},
    {"--batch-size", "--set batch=N, where the plan has it"},
    {"--seed", "--set seed=N, where the plan has it"},
    {"--cpu", "--device cpu, the default"},
    {"--cuda", "--device cuda"},
    {"--redirects", "--runs DIR, which keeps a log"},
    {"--tee", "--runs DIR, which keeps a log"},
    {"--bind-to", "--bind core|numa|none"},
    {"--cpu-bind", "--bind core|numa|none"},
    {"--mca", "--transport-options K=V,.."},
    {"--verbose", "--log-level info"},
    {"-v", "--log-level info"},
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
    if (name == theirs) return fmt::format(" (here: {})", ours);
  return "";
}

std::string value_here(const std::string& option, const std::string& value) {
  for (const ElsewhereValue& row : kElsewhereValues)
    if (option == row.option && value == row.theirs) return fmt::format(" (here: {})", row.ours);
  return "";
}

}  // namespace prun
