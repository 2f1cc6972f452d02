#include "proof.h"

#include <fmt/format.h>

#include "build_job.h"
#include "prove/prove.h"

namespace prun {

std::string prove_plan(const Options& options, const Plan& plan, int ranks) {
  const std::unique_ptr<Device> device = open_device(options.device);
  ProofOptions how;
  how.record = [&](const PlanSizes& sizes) { return record_plan(options, ranks, sizes); };
  how.fuses = [&](std::string_view kind) { return device->fuses(kind); };
  const Proof proof = prove(plan, how);
  switch (proof.verdict) {
    case Proof::Verdict::equal:
      return fmt::format("computes what one rank computes, to {:.0e}: {}", proof.largest, proof.text);
    case Proof::Verdict::differs:
      throw plan_error("does not compute what one rank computes: " + proof.text, proof.site);
    case Proof::Verdict::not_run:
      break;
  }
  return "not proven: " + proof.text;
}

}  // namespace prun
