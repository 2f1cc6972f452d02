#include "environment.h"

namespace prun {

const std::vector<Variable>& variables() {
  static const std::vector<Variable> all = {
      {"PRUN_SECRET", "the secret that the nodes of a job share, as the first line of --secret-file", true},
      {"PRUN_RENDEZVOUS", "HOST:PORT where node 0 listens, as --rendezvous"},
      {"PRUN_NNODES", "nodes of the job, as --nnodes; with PRUN_NODE_RANK, or Kubernetes' JOB_COMPLETION_INDEX"},
      {"PRUN_NODE_RANK", "which of them this is, as --node-rank"},
      {"PRUN_LOCAL_RANK", "which of the host's processes this is; PRUN_LOCAL_SIZE: how many there are"},
      {"PRUN_JOB", "names the job where its processes meet on one host"},
      {"PRUN_HOST_ID", "identity of this host instead of the kernel's boot id: ranks with equal ones share memory"},
      {"XDG_RUNTIME_DIR", "where processes of one host meet; /tmp/prun-UID where it is not set"},
      {"XDG_CONFIG_HOME",
       "where prun calibrate keeps this machine's figures, as prun/HOST.yaml; ~/.config where it is not set"},
      {"PRUN_PLUGIN_PATH", "folders of transports, with colons between, searched before prun's own"},
      {"PRUN_DEVICE_PATH", "folders of devices, with colons between, searched before prun's own"},
      {"PRUN_LOG", "debug, info, warning or error: the log on standard error; --log-level overrides it"},
      {"CUDA_VISIBLE_DEVICES", "which GPUs --device cuda sees, and in which order"},
      {"OMP_WAIT_POLICY", "how threads of kernels wait; prun sets GOMP_SPINCOUNT=2000 where neither is set"},
      {"GOMP_SPINCOUNT", "how long threads of kernels spin before they sleep", false, "2000"},
      {"TERM", "dumb: no live line"},
      {"NO_COLOR", "set: no colours"},
  };
  return all;
}

}  // namespace prun
