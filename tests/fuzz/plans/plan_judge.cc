// Judges plans: reads requests, one JSON object per line, and answers each in lines of JSON: the verdict of `prun
// check`, then a comparison of all ranks with one rank.
//
// The verdict comes from the same libraries in the same order as in `prun check` (runtime/job/build.cc). The comparison
// is independent of it: the plan runs in its real size on virtual ranks in f64 even if the verifier rejects it. A
// request that crashes ends the process, so its last line shows how far it came.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "compile/compile.h"
#include "data/data_files.h"
#include "ir/plan_reader.h"
#include "kernels/devices.h"
#include "prove/compare.h"
#include "prove/prove.h"
#include "script/script.h"
#include "script/script_server.h"
#include "verify/verify.h"

namespace prun::test {
namespace {

using nlohmann::json;

// The limit of a check without --prove, from tools/prun/proof.cc.
constexpr double kMostProofWork = 0.5e6;
constexpr size_t kMostProvenNodes = 5000;
constexpr double kNudge = 1e-6;
constexpr double kExpected = 1e-9;  // relative rounding of a plan whose values do not grow

// A request. "plan": path; "ranks"; "device": device that is checked for; "check_replicas", "most_skips",
// "check_finite", "pad_vocabulary": options of prun; "raw": whether to also run the plan with its own dtypes.
struct Request {
  std::string plan, device = "reference";
  int ranks = 1;
  int64_t check_replicas = 0, most_skips = 0, check_finite = 0, pad_vocabulary = 0;
  bool raw = false, prove = true;
};

Request read_request(const std::string& line) {
  const json given = json::parse(line);
  Request request;
  given.at("plan").get_to(request.plan);
  given.at("ranks").get_to(request.ranks);
  request.device = given.value("device", request.device);
  request.check_replicas = given.value("check_replicas", int64_t{0});
  request.most_skips = given.value("most_skips", int64_t{0});
  request.check_finite = given.value("check_finite", int64_t{0});
  request.pad_vocabulary = given.value("pad_vocabulary", int64_t{0});
  request.raw = given.value("raw", false);
  request.prove = given.value("prove", true);
  return request;
}

void answer(const json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', false, json::error_handler_t::replace));
  std::fflush(stdout);
}

class Judge {
 public:
  explicit Judge(Request request)
      : request_(std::move(request)), device_(open_device(request_.device)), reference_(open_device("reference")) {}

  void run() {
    Plan plan;
    std::string stage = "script";
    json verdict = {{"line", "verdict"}};
    try {
      plan = record(request_.ranks, {}, false);
      recorded_ = true;
      stage = "compile";
      const Job job = compile(plan, options(*device_, false));
      stage = "verify";
      require_supported(job);
      require_valid(job, 0, request_.ranks);
      check_data(plan);
      stage = "proof";
      if (request_.prove) verdict.update(proof_of(plan));
      if (!verdict.value("refused", false)) stage = "accepted";
    } catch (const Error& error) {
      verdict.update({{"refused", true}, {"text", error.what()}, {"exit", static_cast<int>(error.code())}});
    }
    verdict["stage"] = stage;
    answer(verdict);
    answer(truth(plan));
  }

 private:
  Plan record(int ranks, std::optional<PlanSizes> sizes, bool alone) const {
    ScriptOptions script;
    script.plan_path = request_.plan;
    script.lua_dir = PRUN_LUA_DIR;
    script.world = ranks;
    script.sizes = std::move(sizes);
    if (alone) script.settings["alone"] = "true";
    return read_plan(run_script(script).plan_cbor);
  }

  CompileOptions options(const Device& device, bool widen) const {
    CompileOptions made;
    made.device = std::string(device.name());
    made.widen = widen;
    made.check_replicas = request_.check_replicas;
    made.most_skips = request_.most_skips;
    made.check_finite = request_.check_finite != 0;
    made.workspace_bytes = [&](const Program& program, const Op& op) { return device.workspace_bytes(program, op); };
    made.joins_steps = device_->queue() != nullptr;
    made.vocabulary_multiple = multiple();
    made.fuses = [this](std::string_view kind) { return device_->fuses(kind); };
    return made;
  }

  int64_t multiple() const {
    return request_.pad_vocabulary > 0 ? request_.pad_vocabulary : device_->vocabulary_multiple();
  }

  void require_supported(const Job& job) const {
    for (const Program& program : job.classes)
      for (const Body& body : program.bodies)
        for (const Stream& stream : body.streams)
          for (const Op& op : stream.ops)
            if (op.def->op_class == OpClass::compute && !device_->supports(op, program))
              throw plan_error(fmt::format("the device '{}' cannot run {}", device_->name(), op.def->name), op.site);
  }

  json proof_of(const Plan& plan) const {
    if (plan.graph.nodes.size() > kMostProvenNodes) return {{"proof", "not_run"}, {"text", "the model is large"}};
    ProofOptions how;
    how.record = [&](const PlanSizes& sizes) { return record(request_.ranks, sizes, false); };
    how.fuses = [this](std::string_view kind) { return device_->fuses(kind); };
    how.vocabulary_multiple = multiple();
    how.most_work = kMostProofWork;
    how.problem = [](const Job& job) {
      const std::vector<Finding> findings = verify_job(job, 0);
      return findings.empty() ? std::string() : findings.front().message;
    };
    const Proof proof = prove(plan, how);
    switch (proof.verdict) {
      case Proof::Verdict::equal:
        return {{"proof", "equal"}, {"text", sentence(proof)}};
      case Proof::Verdict::as_it_says:
        return {{"proof", "as_it_says"}, {"text", sentence(proof)}};
      case Proof::Verdict::undeclared:
        return {{"proof", "undeclared"}, {"text", proof.text}};
      case Proof::Verdict::not_run:
        return {{"proof", "not_run"}, {"text", proof.text}};
      case Proof::Verdict::differs:
        break;
    }
    return {{"proof", "differs"}, {"text", proof.text}, {"refused", true}};
  }

  // Compares the plan as it is with one rank, independent of the verdict.
  json truth(const Plan& plan) const {
    json all = {{"line", "truth"}};
    if (!recorded_) {
      try {
        record(1, {}, true);
        all["one_rank_records"] = true;
      } catch (const Error& error) {
        all["one_rank"] = error.what();
      }
      return all;
    }
    all["widened"] = beside_one_rank(plan, true);
    if (request_.raw) all["raw"] = beside_one_rank(plan, false);
    return all;
  }

  json beside_one_rank(const Plan& plan, bool widen) const {
    json found;
    try {
      const Plan alone = record(1, {}, true);
      CompileOptions of_one = options(*reference_, widen);
      of_one.vocabulary_multiple = 1;
      of_one.check_replicas = 0;
      of_one.check_finite = false;
      const Job one_job = compile(alone, of_one);
      const VirtualRun one = run_virtual_ranks(one_job, *reference_);
      Job job;
      try {
        job = compile(plan, options(*reference_, widen));
      } catch (const Error& error) {
        return {{"not_compiled", error.what()}};
      }
      VirtualRun run;
      try {
        run = run_virtual_ranks(job, *reference_, {.order = VirtualOrder::random, .seed = 1});
      } catch (const Error& error) {
        return {{"stopped", error.what()}};
      }
      found = compared(plan, job, run, one_job, one);
      if (found["finite"] == true && most_of(found) > kExpected)
        found["sensitivity"] = sensitivity(alone, of_one, one_job, one);
    } catch (const Error& error) {
      return {{"one_rank", error.what()}};
    }
    return found;
  }

  // Returns the differences on one rank when its initial weights are larger by kNudge. Fast-growing values and long
  // trainings magnify rounding. A nudge of the size of rounding would be lost because weights are initialized as f32.
  json sensitivity(Plan alone, const CompileOptions& options, const Job& one_job, const VirtualRun& one) const {
    for (Value& value : alone.graph.values)
      if (value.kind == ValueKind::parameter) value.init.scale *= 1 + kNudge;
    const Job job = compile(alone, options);
    return compared(alone, job, run_virtual_ranks(job, *reference_), one_job, one);
  }

  static json compared(const Plan& plan, const Job& job, const VirtualRun& run, const Job& one_job,
                       const VirtualRun& one) {
    const bool finite = is_finite(one.losses) && is_finite(one.eval_losses);
    json found = {{"finite", finite},
                  {"loss", largest(run.losses, one.losses)},
                  {"eval", largest(run.eval_losses, one.eval_losses)},
                  {"norms", norms_differ(run, one)}};
    found["last_loss"] = one.losses.empty() ? 0.0 : one.losses.back().front();
    if (!finite) return found;
    const Comparison states = compare({job, run, one_job, one}, {{}, false, plan.optimizer.op->name == "lion"});
    found["state"] = number(states.largest);
    if (states.first && states.first->held.elements.empty() && std::isnan(states.first->found))
      found["lost"] = states.first->what;
    if (states.first) found["first"] = states.first->what;
    return found;
  }

  static double most_of(const json& found) {
    double most = 0;
    for (const char* key : {"loss", "eval", "norms", "state"}) most = std::max(most, found.value(key, 0.0));
    return most;
  }

  // JSON has no infinity.
  static double number(double value) { return std::isfinite(value) ? value : 1e300; }

  static bool is_finite(const std::vector<std::vector<double>>& losses) {
    for (const std::vector<double>& each : losses)
      if (!std::isfinite(each.front())) return false;
    return true;
  }

  // Returns the largest relative difference over steps and ranks, up to the first step of `right` that is not finite.
  static double largest(const std::vector<std::vector<double>>& found, const std::vector<std::vector<double>>& right) {
    if (found.size() != right.size()) return 1e300;
    double most = 0;
    for (size_t step = 0; step < found.size(); step++) {
      const double expected = right[step].front();
      for (const double loss : found[step]) {
        if (!std::isfinite(expected)) {
          if (std::isfinite(loss)) return 1e300;
          continue;
        }
        most = std::max(most, number(std::abs(loss - expected) / std::max(std::abs(expected), 1e-2)));
      }
      if (!std::isfinite(expected)) break;
    }
    return most;
  }

  // Returns the reported norms: "3 block0 grad_norm" -> value.
  static std::map<std::string, double> norms_of(const VirtualRun& run) {
    std::map<std::string, double> norms;
    for (const auto& [rank, line] : run.printed) {
      const json object = json::parse(line.substr(1), nullptr, false);
      if (!object.is_object() || !object.contains("report")) continue;
      for (const auto& [unit, both] : object["report"].items())
        for (const auto& [name, norm] : both.items())
          norms[fmt::format("{} {} {}", object["step"].dump(), unit, name)] =
              norm.is_number() ? norm.get<double>() : NAN;
    }
    return norms;
  }

  static double norms_differ(const VirtualRun& run, const VirtualRun& one) {
    const std::map<std::string, double> found = norms_of(run), right = norms_of(one);
    double most = 0, scale = 1e-12;
    for (const auto& [name, norm] : right) scale = std::isfinite(norm) ? std::max(scale, norm) : scale;
    for (const auto& [name, norm] : right) {
      const auto at = found.find(name);
      if (at == found.end()) return 1e300;
      if (!std::isfinite(norm) && !std::isfinite(at->second)) continue;
      most = std::max(most, number(std::abs(at->second - norm) / scale));
    }
    return found.size() == right.size() ? most : 1e300;
  }

  const Request request_;
  const std::unique_ptr<Device> device_, reference_;
  bool recorded_ = false;
};

}  // namespace
}  // namespace prun::test

int main() {
  const prun::ScriptServer scripts(PRUN_LUA_DIR);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      prun::test::Judge(prun::test::read_request(line)).run();
    } catch (const std::exception& error) {
      prun::test::answer({{"line", "truth"}, {"internal", error.what()}});
    }
  }
  return 0;
}
