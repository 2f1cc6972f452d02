#include "watch/run_result.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

Json finite_number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

void RunResult::tick() {
  if (!transports_.empty() || job_ == nullptr || job_->recorders.empty()) return;
  const RecorderHeader& first = *job_->recorders.front();
  if (first.connected.load() != 0) transports_ = first.transports;
}

void RunResult::step(const MergedStep& step) {
  if (steps_++ == 0) first_ = step;
  last_ = step;
  seconds_ += step.time_s;
  skipped_ += step.skipped ? 1 : 0;
  evaluation_s_ += step.eval_s;
}

std::string RunResult::text(const Job& job, int exit_code) const {
  Json all = {{"exit_code", exit_code}};
  if (!job.classes.empty()) {
    const Program& program = job.classes.front();
    all["plan"] = program.name;
    all["ranks"] = job.class_of_rank.size();
    all["mesh"] = program.mesh.text();
    all["transports"] = transports_;
    if (!job.numerics.kernels.empty()) all["kernels"] = job.numerics.kernels;
    all["steps"] = steps_;
    all["loss"] =
        steps_ == 0 ? Json(nullptr) : Json{{"first", finite_number(first_.loss)}, {"last", finite_number(last_.loss)}};
    if (skipped_ > 0) all["skipped_steps"] = skipped_;
    all["seconds"] = seconds_;
    if (program.tokens_per_step > 0 && seconds_ > 0)
      all[program.sample_word + "_per_s"] = static_cast<double>(steps_) * program.tokens_per_step / seconds_;
    const std::vector<std::string> named = step_names(program), eval_named = evaluation_names(program);
    for (size_t i = 0; steps_ > 0 && i < named.size(); ++i) all[named[i]] = finite_number(last_.named[i]);
    if (last_.evaluated()) all["eval_loss"] = finite_number(last_.eval_loss);
    for (size_t i = 0; last_.evaluated() && i < eval_named.size(); ++i)
      all["eval_" + eval_named[i]] = finite_number(last_.eval_named[i]);
  }
  if (failure_.code != 0)
    all["failure"] = {{"what", failure_.what},
                      {"who", failure_.who},
                      {"op", failure_.op},
                      {"evidence", failure_.evidence},
                      {"next", failure_.next}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace prun
