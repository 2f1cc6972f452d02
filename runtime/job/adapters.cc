#include "job/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include "base/error.h"
#include "checkpoint/base.h"
#include "checkpoint/folder.h"
#include "checkpoint/history.h"
#include "checkpoint/linear_weights.h"
#include "job/job_spec.h"
#include "job/replicas.h"

namespace prun {

std::string base_of_checkpoint(const std::string& checkpoint) {
  if (checkpoint.empty() || checkpoint == "auto") return "";
  try {
    return checkpoint::read_index(checkpoint::resolve(checkpoint)).adapters.base;
  } catch (const Error&) {
    return "";  // the command reports it when it opens the checkpoint
  }
}

void settle_base_option(std::string& base) {
  if (base.empty()) return;
  if (!std::filesystem::exists(base)) throw usage_error(fmt::format("--base: there is no folder {}", base));
  base = std::filesystem::absolute(base).lexically_normal().string();
}

void require_base_used(const JobSpec& spec, const Plan& plan) {
  if (!spec.checkpoint.base.empty() && !plan.initial_weights)
    throw usage_error("--base replaces the path of prun.init.from, and the plan has none");
}

void settle_base(JobSpec& spec, const Plan& plan, Job& job) {
  CheckpointSettings& s = spec.checkpoint;
  if (!plan.adapters.has_base() || (s.folder.empty() && !keeps_replicas(spec, plan) && !s.resumes)) return;
  const checkpoint::Weights base = checkpoint::open_weights(plan.adapters.base);
  if (s.base_digest.empty()) s.base_digest = checkpoint::base_digest(base);
  for (Program& program : job.classes) {
    program.adapters.base = std::filesystem::absolute(base.folder).lexically_normal().string();  // no folder of several
    program.adapters.base_sha256 = s.base_digest;
    for (const std::string& name : checkpoint::linear_weights(plan.graph))
      if (!is_adapter(name)) program.adapters.linear.push_back(name);
  }
}

void require_adapters_fit(const std::string& folder, const Adapters& there, const Program& program) {
  const Adapters& here = program.adapters;
  const auto refuse = [&](const std::string& what) {
    throw Error(Exit::checkpoint_invalid, fmt::format("the checkpoint {} does not fit this plan: {}", folder, what));
  };
  if (there.any() && !here.any())
    refuse(
        fmt::format("it holds adapters (rank {}, alpha {}), and the plan has no lora = prun.lora {{ ... }}; prun "
                    "ckpt export --merge makes whole weights of them",
                    there.rank, there.alpha));
  if (!there.any() && here.any())
    refuse(
        fmt::format("it holds a whole model, and the plan trains adapters (lora); init = prun.init.from {{ path = "
                    "\"{}\" }} begins with it as their base",
                    folder));
  if (!there.any()) return;
  if (there.alpha != here.alpha)
    refuse(fmt::format("alpha of its adapters is {} there and {} here", there.alpha, here.alpha));
  if (there.has_base() && !here.has_base())
    refuse(fmt::format("its adapters belong to the base {}, and the plan has no init = prun.init.from {{ ... }}",
                       there.base));
  if (there.has_base()) checkpoint::require_base(folder, there, here.base_sha256, here.base);
}

void require_peft_fits(const Plan& plan, const checkpoint::PeftWeights& peft) {
  const auto refuse = [&](const std::string& what) {
    throw Error(Exit::checkpoint_invalid,
                fmt::format("the adapters in {} do not fit this plan's lora: {}", plan.initial_weights->path, what));
  };
  const Adapters &there = peft.adapters, &here = plan.adapters;
  if (there.rank != here.rank) refuse(fmt::format("rank is {} there and {} here", there.rank, here.rank));
  if (there.alpha != here.alpha) refuse(fmt::format("alpha is {} there and {} here", there.alpha, here.alpha));
  std::set<std::string> ours, theirs;
  const auto note = [](std::set<std::string>& layers, const std::string& name) {
    if (name.ends_with(kAdapterA)) layers.insert(name.substr(0, name.size() - std::string(kAdapterA).size()));
  };
  for (const Value& value : plan.graph.values)
    if (value.kind == ValueKind::parameter) note(ours, value.name);
  for (const auto& [name, weight] : peft.weights.tensors) note(theirs, name);
  for (const std::string& layer : theirs)
    if (!ours.contains(layer))
      refuse(fmt::format("they adapt '{}', which match ({}) here does not", layer, here.match));
  for (const std::string& layer : ours)
    if (!theirs.contains(layer))
      refuse(fmt::format("match ({}) here adapts '{}', which has no adapter there", here.match, layer));
  for (const Value& value : plan.graph.values)
    if (value.frozen && std::ranges::find(peft.trained, value.name) != peft.trained.end())
      refuse(fmt::format("they hold '{0}', trained in full, which lora here freezes: add train = \"{0}\"", value.name));
}

bool is_adapter(const std::string& parameter) {
  return parameter.ends_with(kAdapterA) || parameter.ends_with(kAdapterB);
}

void require_whole_base(const Plan& plan, const std::vector<std::string>& missing) {
  for (const Value& value : plan.graph.values) {
    if (value.kind != ValueKind::parameter || !value.frozen) continue;
    for (const std::string& name : missing)
      if (name == value.name)
        throw plan_error(fmt::format("the base {} lacks '{}', which lora freezes: train it, for example train = \"{}\"",
                                     plan.adapters.base, name, name),
                         plan.initial_weights->site);
  }
}

}  // namespace prun
