#include <nlohmann/json.hpp>

#include "doctor/check.h"

namespace prun::doctor {
namespace {

class Listener final : public LaunchObserver {
 public:
  explicit Listener(JobOutcome& outcome) : outcome_(outcome) {}
  void started(const std::vector<int>&, const std::vector<int>&, const std::vector<void*>&) override {}
  void tick() override {}
  void line(int, const std::string& text) override {
    const nlohmann::json row = nlohmann::json::parse(text);
    outcome_.reported.push_back(
        {row["name"], static_cast<Status>(row["status"].get<int>()), row["text"], row["fix"], {}, row["number"]});
  }
  std::string where(int) override { return ""; }
  void message(const std::string& text) override {
    if (!outcome_.failure.empty()) return;
    outcome_.failure = text.substr(0, text.find('\n'));
    if (outcome_.failure.starts_with("prun: ")) outcome_.failure.erase(0, 6);
  }

 private:
  JobOutcome& outcome_;
};

}  // namespace

void report(LauncherClient& launcher, const Finding& finding) {
  const nlohmann::json row = {{"name", finding.name},
                              {"status", static_cast<int>(finding.status)},
                              {"text", finding.text},
                              {"fix", finding.fix},
                              {"number", finding.number}};
  launcher.print(row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

JobOutcome run_job(const LaunchOptions& options, const std::string& job, const Launch::RankMain& rank_main) {
  JobOutcome outcome;
  Listener listener(outcome);
  try {
    Launch launch(options, listener);
    outcome.code = launch.run(job, rank_main);
  } catch (const Error& error) {
    outcome.code = static_cast<int>(error.code());
    outcome.failure = error.what();
  }
  return outcome;
}

}  // namespace prun::doctor
