// prun tune PLAN --cluster FILE: finds the fastest arguments of a plan on a cluster.
//
//     all combinations --> estimate (few stages, microbatches, layers) --> rank
//     best of them     --> compile --> verify --> simulate --> prove   --> report
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/terminal.h"
#include "base/text.h"
#include "job/build.h"
#include "job/proof.h"
#include "job/spent_time.h"
#include "job_options.h"
#include "predict/candidates.h"
#include "predict/parallel.h"
#include "predict/predict.h"
#include "sim_options.h"
#include "tune/report.h"

namespace prun {
namespace {

using simulate::Cluster;

constexpr size_t kSimulated = 20;  // number of fitting candidates to simulate

// Returns the Error of an invalid candidate, or ""; other errors end the search.
template <class Try>
std::string why_not(const Try& attempt) {
  try {
    attempt();
    return "";
  } catch (const Error& error) {
    if (error.code() != Exit::plan && error.code() != Exit::script_limit) throw;
    return error.what();
  }
}

std::string wire_text(const nlohmann::json& values) {
  return values.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Tuning {
 public:
  Tuning(const JobSpec& job, int candidates, const Cluster& cluster, SearchSpace space)
      : job_(job), candidates_(candidates), cluster_(cluster), space_(std::move(space)) {}

  Tuned run() {
    tuned_.combinations = space_.combinations();
    std::vector<Ranked> ranked =
        rank_candidates(space_, candidates_, [this](const auto& combinations) { return estimate(combinations); });
    simulate_best(ranked);
    count_left_out(ranked);
    return std::move(tuned_);
  }

 private:
  JobSpec with(const std::map<std::string, std::string>& settings) const {
    JobSpec one = job_;
    for (const auto& [name, value] : settings) one.settings[name] = value;
    return one;
  }

  struct Recorded {
    size_t digest = 0;
    std::string wrong;
  };

  std::vector<Recorded> record(const std::vector<Combination>& combinations, bool whole) const {
    const auto work = [&](int item) {
      const TimeSpent time("recording");
      Recorded one;
      one.wrong = why_not([&] { one.digest = plan_digest(with(space_.settings(combinations[item])), whole); });
      return wire_text({one.digest, one.wrong});
    };
    std::vector<Recorded> all;
    for (const std::string& text :
         in_processes(static_cast<int>(combinations.size()), job_.lua_dir, work, [](int) {})) {
      const nlohmann::json of = nlohmann::json::parse(text);
      all.push_back({of[0], of[1]});
    }
    return all;
  }

  // Makes `plan` equal for candidates that record the same plan. Recording many layers is slow, so `plan` first holds
  // the digest with few layers; only candidates with equal digests are recorded in full.
  void tell_apart(std::vector<Ranked>& all) {
    std::map<size_t, std::vector<size_t>> groups;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].wrong.empty()) groups[all[i].plan].push_back(i);
    std::vector<Combination> wanted;
    for (const auto& [few, members] : groups) {
      const auto known = alike_.find(few);
      if (known == alike_.end() && members.size() == 1) continue;
      if (known != alike_.end() && known->second.plans.empty()) wanted.push_back(known->second.first);
      for (const size_t i : members) wanted.push_back(all[i].combination);
    }
    const std::vector<Recorded> whole = record(wanted, true);
    auto next = whole.begin();
    for (const auto& [few, members] : groups) {
      const auto [known, fresh] = alike_.try_emplace(few, Alike{all[members.front()].combination, {}});
      if (fresh && members.size() == 1) continue;
      std::map<size_t, size_t>& plans = known->second.plans;
      if (!fresh && plans.empty()) plans[next++->digest] = few;
      for (const size_t i : members) {
        const Recorded& one = *next++;
        all[i].wrong = one.wrong;
        if (one.wrong.empty())
          all[i].plan = plans.try_emplace(one.digest, plans.empty() ? few : one.digest).first->second;
      }
    }
  }

  // Estimates one of the combinations that record the same plan.
  std::vector<Ranked> estimate(const std::vector<Combination>& combinations) {
    std::vector<Ranked> all;
    for (Recorded& few : record(combinations, false))
      all.push_back({combinations[all.size()], {}, few.digest, std::move(few.wrong)});
    tell_apart(all);
    std::vector<size_t> fresh;  // indexes in `all`
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].wrong.empty() && known_.try_emplace(all[i].plan).second) fresh.push_back(i);
    Bar bar("estimate", "combinations");
    const int64_t most = std::min<int64_t>(candidates_, tuned_.combinations);
    const int64_t before = tuned_.estimated + std::ssize(all) - std::ssize(fresh);
    const auto work = [&](int item) {
      const TimeSpent time("estimates");
      Ranked one = all[fresh[item]];
      one.wrong = why_not([&] { one.estimate = estimate_plan(with(space_.settings(one.combination)), cluster_); });
      const Estimate& of = one.estimate;
      return wire_text({of.step_s, of.peak_bytes, of.memory_bytes, of.effort_s, one.wrong});
    };
    const std::vector<std::string> texts = in_processes(static_cast<int>(fresh.size()), job_.lua_dir, work,
                                                        [&](int done) { bar.advance(before + done, most); });
    for (size_t i = 0; i < fresh.size(); ++i) {
      const nlohmann::json of = nlohmann::json::parse(texts[i]);
      known_[all[fresh[i]].plan] = {{}, {of[0], of[1], of[2], of[3]}, 0, of[4]};
    }
    for (Ranked& each : all) {
      if (!each.wrong.empty()) continue;
      each.estimate = known_.at(each.plan).estimate;
      each.wrong = known_.at(each.plan).wrong;
    }
    tuned_.estimated += std::ssize(all);
    return all;
  }

  Trial trial_of(const Ranked& ranked) const {
    Trial trial;
    trial.settings = space_.settings(ranked.combination);
    trial.text = space_.text(ranked.combination);
    trial.step_s = trial.estimate_s = ranked.estimate.step_s;
    trial.peak_bytes = trial.estimate_bytes = ranked.estimate.peak_bytes;
    trial.memory_bytes = ranked.estimate.memory_bytes;
    trial.effort_s = ranked.estimate.effort_s;
    trial.wrong = ranked.wrong;
    return trial;
  }

  // Simulates in the order of the estimates, until enough candidates fit.
  void simulate_best(const std::vector<Ranked>& ranked) {
    size_t next = 0;
    while (tuned_.trials.size() < kSimulated) {
      std::vector<Trial> some;
      while (next < ranked.size() && tuned_.trials.size() + some.size() < kSimulated) {
        if (!ranked[next].wrong.empty() || !ranked[next].fits()) break;
        some.push_back(trial_of(ranked[next++]));
      }
      if (some.empty()) break;
      simulate(some);
      for (Trial& each : some) {
        if (!each.wrong.empty())
          leave_out(each.wrong, each.text);
        else if (!each.refuted.empty())
          tuned_.refuted.push_back(std::move(each));
        else
          (each.misfit.empty() ? tuned_.trials : tuned_.misfits).push_back(std::move(each));
      }
    }
    simulated_ = next;
    std::stable_sort(tuned_.trials.begin(), tuned_.trials.end(),
                     [](const Trial& a, const Trial& b) { return a.step_s < b.step_s; });
  }

  // Starts with the slowest, so that all cores finish at about the same time.
  void simulate(std::vector<Trial>& trials) {
    Bar bar("simulate", "plans");
    std::vector<size_t> order(trials.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return trials[a].effort_s > trials[b].effort_s; });
    const auto work = [&](int item) {
      Trial trial;
      const JobSpec one = with(trials[order[item]].settings);
      const int ranks = one.ranks();
      trial.wrong = why_not([&] {
        const TimeSpent time("simulations");
        take_results(trial, simulate_plan(one, cluster_, {.wanted = Wanted::largest_peak}), cluster_);
      });
      if (trial.wrong.empty() && trial.misfit.empty())
        trial.refuted = why_not([&] {
          const TimeSpent time("proofs");
          trial.proof = prove_plan(one, record_plan(one, ranks), ranks, &proven_).text;
        });
      return to_text(trial);
    };
    const std::vector<std::string> texts = in_processes(static_cast<int>(trials.size()), job_.lua_dir, work,
                                                        [&](int done) { bar.advance(done, std::ssize(trials)); });
    for (size_t i = 0; i < trials.size(); ++i) from_text(trials[order[i]], texts[i]);
  }

  void count_left_out(const std::vector<Ranked>& ranked) {
    for (size_t i = simulated_; i < ranked.size(); ++i) {
      if (!ranked[i].wrong.empty())
        leave_out(ranked[i].wrong, space_.text(ranked[i].combination));
      else if (!ranked[i].fits())
        tuned_.misfits.push_back(trial_of(ranked[i]));
    }
    std::stable_sort(tuned_.misfits.begin(), tuned_.misfits.end(),
                     [](const Trial& a, const Trial& b) { return a.step_s < b.step_s; });
    for (auto& [kind, of] : left_out_) tuned_.left_out.push_back(std::move(of));
    std::stable_sort(tuned_.left_out.begin(), tuned_.left_out.end(),
                     [](const RefusedCandidates& a, const RefusedCandidates& b) { return a.count > b.count; });
  }

  // Treats messages that differ only in digits as one reason.
  void leave_out(const std::string& why, const std::string& example) {
    std::string kind;
    for (const char c : why)
      if (std::isdigit(static_cast<unsigned char>(c)) == 0) kind += c;
    const auto [of, fresh] = left_out_.try_emplace(kind, RefusedCandidates{why, example});
    if (!fresh) of->second.count++;
  }

  const JobSpec& job_;
  const int candidates_;
  const Cluster& cluster_;
  const SearchSpace space_;
  SharedTexts proven_;  // candidates that differ only in sizes mostly shrink to one plan
  Tuned tuned_;
  struct Alike {
    Combination first;
    std::map<size_t, size_t> plans;  // indexes by the digest of the full plan; empty for a single plan
  };
  std::map<size_t, Alike> alike_;   // groups by the digest with few layers
  std::map<size_t, Ranked> known_;  // candidates by plan
  size_t simulated_ = 0;            // number of ranked candidates
  std::map<std::string, RefusedCandidates> left_out_;
};

class Tune final : public PlanCommand {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;

 private:
  SimSettings sim_;
};

void Tune::declare(OptionTable& table) {
  declare_plan(table, job_);
  table.group("search");
  declare_search(table, sim_);
  table.group("ranks and devices");
  option::device(table, job_);
  option::nnodes(table, job_);
  option::time_passes(table, job_, "print what the search's parts take");
}

void Tune::settle() {
  check_ranks(job_);
  require_plan();
  settle_cluster(sim_, true, job_.ranks());
}

int Tune::run() {
  const Cluster cluster = open_cluster(job_, sim_.cluster);
  simulate::place_ranks(cluster, job_.ranks());
  const ScriptResult about = describe_plan(job_);
  print_remarks(job_);
  SearchSpace space = search_space(job_, sim_.search, about.arguments, cluster);
  const JobSpec given = job_;
  // A plan with a given number of layers may be shrunk.
  for (const PlanArgument& each : about.arguments)
    if (each.name == "layers") job_.settings.try_emplace(each.name, each.initial);
  const Tuned tuned = Tuning(job_, sim_.candidates, cluster, std::move(space)).run();
  if (job_.time_passes) print_spent_time();
  if (tuned.trials.empty())
    throw plan_error(fmt::format("{}: none of {} is a plan that fits on {}:{}", job_.plan,
                                 counted(tuned.estimated, "combination"), sim_.cluster, left_out_text(tuned)));
  line_.json ? print_tuned_json(given, cluster, tuned) : print_tuned(given, cluster, tuned);
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_tune() { return std::make_unique<Tune>(); }

}  // namespace prun
