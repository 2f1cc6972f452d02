// The proof runs in a child process, so that its memory is returned, and its crash does not prevent running a plan that
// the verifier accepts.
#include "job/proof.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/child_process.h"
#include "job/build.h"
#include "kernels/devices.h"
#include "prove/prove.h"
#include "verify/verify.h"

namespace prun {
namespace {

// Limits without --prove: about half a second, and models that a script records quickly.
constexpr double kWorkUnasked = 0.5e6;
constexpr size_t kNodesUnasked = 5000;
constexpr double kWorkAsked = 10e6;
constexpr std::chrono::seconds kMostUnasked{5}, kMostAsked{60};

void reply(int pipe, const Proof& proof) {
  const Site site = proof.site.value_or(Site{});
  const std::string text = nlohmann::json{
      {"verdict", static_cast<int>(proof.verdict)},
      {"text", proof.text},
      {"apart_from", proof.apart_from},
      {"file", site.file.str()},
      {"line", site.line}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (size_t at = 0; at < text.size();) {
    const ssize_t sent = write(pipe, text.data() + at, text.size() - at);
    if (sent <= 0) _exit(1);
    at += static_cast<size_t>(sent);
  }
  _exit(0);
}

Proof not_run(std::string why) { return {Proof::Verdict::not_run, std::move(why), std::nullopt, {}}; }

std::string first_finding(const Job& job) {
  const std::vector<Finding> findings = verify_job(job, 0);
  return findings.empty() ? "" : findings.front().message;
}

Proof prove_apart(const JobSpec& spec, const Plan& plan, int ranks, SharedTexts* known) {
  ChildProcess child([&](int pipe) {
    const std::unique_ptr<Device> device = open_device(spec.device);
    ProofOptions how;
    how.record = [&](const PlanSizes& sizes) { return record_plan(spec, ranks, sizes); };
    how.fuses = [&](std::string_view kind) { return device->fuses(kind); };
    how.vocabulary_multiple = vocabulary_multiple(spec, *device);
    how.problem = first_finding;
    if (known != nullptr) {
      how.known = [&](size_t programs) { return known->find(programs); };
      how.proven = [&](size_t programs, const std::string& said) { known->add(programs, said); };
    }
    how.most_work = spec.prove ? kWorkAsked : kWorkUnasked;
    try {
      reply(pipe, prove(plan, how));
    } catch (const std::exception& error) {
      reply(pipe, not_run(error.what()));
    }
  });
  std::string text;
  if (!child.read_reply(ChildProcess::Clock::now() + (spec.prove ? kMostAsked : kMostUnasked), text))
    return not_run("it took too long on this machine");
  const int status = child.wait();
  if (text.empty() || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return not_run(fmt::format("the process that proves has died ({}); this is a bug of prun",
                               WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "no reply"));
  const nlohmann::json json = nlohmann::json::parse(text);
  Proof proof{static_cast<Proof::Verdict>(json.at("verdict").get<int>()), json.at("text"), std::nullopt,
              json.at("apart_from").get<std::vector<std::string>>()};
  if (const Site site{json.at("file").get<std::string>(), json.at("line")}; site.known()) proof.site = site;
  return proof;
}

}  // namespace

ProofReport prove_plan(const JobSpec& spec, const Plan& plan, int ranks, SharedTexts* known) {
  if (!spec.prove && plan.graph.nodes.size() > kNodesUnasked)
    return {false, "not proven: the model is large; --prove does it", {}};
  const Proof proof = prove_apart(spec, plan, ranks, known);
  bool proven = false;
  switch (proof.verdict) {
    case Proof::Verdict::equal:
    case Proof::Verdict::as_it_says:
      proven = true;
      break;
    case Proof::Verdict::differs:
      throw plan_error(proof.text, proof.site);
    case Proof::Verdict::undeclared:
      if (spec.prove) throw plan_error(proof.text, proof.site);
      break;
    case Proof::Verdict::not_run:
      if (spec.prove) throw Error(Exit::check_failed, sentence(proof), proof.site);
      break;
  }
  return {proven, sentence(proof), proof.apart_from};
}

}  // namespace prun
