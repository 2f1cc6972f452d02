#include "watch/status_publisher.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "exec/recorder.h"
#include "watch/who_waits.h"

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kEveryNs = 500'000'000;
constexpr uint64_t kMostShare = 100;  // writing takes at most 1 / kMostShare of the launcher's time
constexpr size_t kMostRanks = 256;    // number of ranks up to which waits are followed
constexpr size_t kFlightEvents = 64, kLastEvents = 8;
constexpr double kLongWaitSeconds = 2;  // waits from this length on get a sentence

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

const char* state_name(const FlightRank& rank, const Activity& activity) {
  switch (activity.doing) {
    case Doing::ended:
      return "ended";
    case Doing::finished:
      return "finished";
    case Doing::stopped:
      return "stopped";
    case Doing::silent:
      return "silent";
    case Doing::joining:
      return "joining";
    case Doing::waiting:
      return "waiting";
    default:
      return rank.phase == RunPhase::running ? "working" : "unknown";
  }
}

}  // namespace

void StatusPublisher::started(const RunningJob& job) {
  job_ = &job;
  about_ = {{"format", 1},
            {"id", run_ != nullptr ? run_->id() : ""},
            {"pid", getpid()},
            {"node", job.topology.node},
            {"nodes", job.topology.node_count()},
            {"plan", spec_.plan},
            {"arguments", spec_.words},
            {"directory", std::filesystem::current_path().string()},
            {"folder",
             run_ == nullptr || run_->path().empty() ? Json() : Json(std::filesystem::absolute(run_->path()).string())},
            {"started", wall_time()}};
  try {
    folder_.open(serialize_job(job.job));
  } catch (const Error& error) {
    warn_(fmt::format("prun status will not show this job: {}", error.what()));
  }
}

void StatusPublisher::step(const MergedStep& step) {
  ++steps_;
  latest_ = step;
  if (step.evaluated()) evaluated_ = step;
}

void StatusPublisher::tick() {
  if (!folder_.is_open()) return;
  const RankWatch& watch = *watchdog_.watch();
  if (folder_.flight_is_wanted()) folder_.give_flight(flight_json(watch.flight(kFlightEvents)));
  const uint64_t begin = now_ns();
  if (begin < next_ns_) return;
  const Flight flight = watch.flight(0);
  if (before_ns_ != 0 && steps_ > steps_before_)
    step_s_ = static_cast<double>(begin - before_ns_) / 1e9 / static_cast<double>(steps_ - steps_before_);
  if (before_ns_ == 0 || steps_ > steps_before_) {
    before_ns_ = begin;
    steps_before_ = steps_;
  }
  folder_.publish(status(flight));
  if (flight.ranks.size() <= kMostRanks) folder_.keep_flight(flight_json(watch.flight(kLastEvents)));
  next_ns_ = begin + std::max(kEveryNs, (now_ns() - begin) * kMostShare);
}

Json StatusPublisher::status(const Flight& flight) const {
  Json status = about_;
  status["updated"] = flight.wall_time;
  const WhoWaits waits(job_->job, flight);
  Json ranks = Json::array();
  bool joining = false;
  double longest = 0;
  for (const FlightRank& rank : flight.ranks) {
    const Activity activity = flight.ranks.size() <= kMostRanks ? waits.of(rank.rank) : Activity{.rank = rank.rank};
    joining = joining || rank.phase == RunPhase::joining;
    const double seconds = flight.seconds_since(activity.since_ns);
    if (activity.doing == Doing::waiting) longest = std::max(longest, seconds);
    ranks.push_back({{"rank", rank.rank},
                     {"node", rank.node},
                     {"host", rank.host},
                     {"pid", rank.pid},
                     {"state", state_name(rank, activity)},
                     {"words", waits.words(activity)},
                     {"seconds", seconds},
                     {"steps_done", rank.steps}});
  }
  if (!job_->job.classes.empty()) {
    const Program& program = job_->program();
    const int64_t done = steps_ == 0 ? program.schedule.begin.step : static_cast<int64_t>(latest_.step) + 1;
    status["steps"] = program.schedule.steps;
    status["step"] = done;
    status["tokens_per_s"] = step_s_ > 0 ? Json(static_cast<double>(program.tokens_per_step) / step_s_) : Json();
    status["eta_s"] = step_s_ > 0 ? Json(static_cast<double>(program.schedule.steps - done) * step_s_) : Json();
  }
  status["state"] = joining ? "joining" : "running";
  status["loss"] = steps_ == 0 ? Json() : finite(latest_.loss);
  status["eval_loss"] = evaluated_.evaluated() ? finite(evaluated_.eval_loss) : Json();
  status["step_s"] = step_s_ > 0 ? Json(step_s_) : Json();
  status["comm_s"] = latest_.comm_s;
  status["exposed_comm_s"] = latest_.exposed_s;
  const FlightRank* first = flight.of(0);
  status["checkpoint"] = first != nullptr && first->saved != 0 ? Json(first->saved) : Json();
  status["writing_checkpoint"] = first != nullptr && first->saving != 0 ? Json(first->saving) : Json();
  status["holdup"] = Json();
  if (longest > kLongWaitSeconds)
    if (const auto holdup = waits.holdup(false)) status["holdup"] = holdup->sentence;
  status["slow"] = watchdog_.slow();
  status["ranks"] = std::move(ranks);
  return status;
}

}  // namespace prun
