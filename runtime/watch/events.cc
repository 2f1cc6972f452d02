#include "watch/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

std::string event_line(const char* event, const Json& more, double time = wall_time()) {
  Json line = {{"wall_time", std::round(time * 1e3) / 1e3}, {"event", event}};
  line.update(more);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string exit_name(int code) {
  if (code > 128 && code < 160) return signal_name(code - 128);
  static const std::pair<Exit, const char*> kNames[] = {{Exit::ok, "ok"},
                                                        {Exit::check_failed, "check failed"},
                                                        {Exit::usage, "usage"},
                                                        {Exit::plan, "plan"},
                                                        {Exit::rank_crash, "rank crash"},
                                                        {Exit::hang, "hang"},
                                                        {Exit::mismatch, "mismatch"},
                                                        {Exit::join, "join"},
                                                        {Exit::transport, "transport"},
                                                        {Exit::checkpoint_write, "checkpoint write"},
                                                        {Exit::checkpoint_invalid, "checkpoint invalid"},
                                                        {Exit::corrupt_link, "link"},
                                                        {Exit::out_of_memory, "out of memory"},
                                                        {Exit::script_limit, "script limit"},
                                                        {Exit::non_finite, "not finite"},
                                                        {Exit::feed, "feed"},
                                                        {Exit::preempted, "preempted"}};
  for (const auto& [exit, name] : kNames)
    if (static_cast<int>(exit) == code) return name;
  return "unknown";
}

void Events::started(const RunningJob& job) {
  if (!job.job.classes.empty()) eval_named_ = evaluation_names(job.program());
  const std::vector<WatchedRank>& ranks = watchdog_.ranks();
  write_(event_line("started",
                    {{"plan", plan_}, {"ranks", ranks.size()}, {"nodes", ranks.empty() ? 0 : ranks.back().node + 1}}));
  joined_.assign(ranks.size(), false);
}

void Events::tick() {
  const std::vector<WatchedRank>& ranks = watchdog_.ranks();
  for (size_t i = 0; i < ranks.size() && i < joined_.size(); ++i) {
    if (joined_[i] || ranks[i].recorder->phase.load() == RunPhase::joining) continue;
    joined_[i] = true;
    write_(event_line(
        "joined", {{"rank", ranks[i].rank}, {"node", ranks[i].node}, {"host", ranks[i].host}, {"pid", ranks[i].pid}}));
  }
  if (ranks.empty() || ranks.front().rank != 0) return;
  const RecorderHeader& first = *ranks.front().recorder;
  int64_t saving = first.saving.load(std::memory_order_acquire);
  const int64_t saved = first.saved.load();
  if (abandoned_.count(saving) != 0) saving = 0;
  if (saved != saved_) {
    if (saving_ != 0 && saving_ != saved) write_(event_line("checkpoint_committed", {{"step", saving_}}));
    // The save began and ended between two ticks.
    if (saving_ != saved) write_(event_line("checkpoint_begun", {{"step", saved}}));
    write_(event_line("checkpoint_committed", {{"step", saved}}));
    saving_ = saved;
  } else if (saving_ != 0 && saving != saving_) {
    write_(event_line("checkpoint_failed", {{"step", saving_}}));
  }
  if (saving != 0 && saving != saving_) write_(event_line("checkpoint_begun", {{"step", saving}}));
  saving_ = saving == saved ? 0 : saving;  // the recorder clears `saving` shortly after the commit
  saved_ = saved;
}

void Events::abandoned(int rank, int64_t step, const std::string& folder, int64_t last,
                       const checkpoint::SaveFailure& failure) {
  if (saving_ != step) write_(event_line("checkpoint_begun", {{"step", step}}));
  if (saving_ == step) saving_ = 0;
  const bool known = failure.free_bytes >= 0;
  write_(event_line("checkpoint_abandoned",
                    {{"step", step},
                     {"rank", rank},
                     {"folder", folder},
                     {"what", failure.what},
                     {"errno", failure.errno_value},
                     {"bytes", failure.bytes},
                     {"free_bytes", known ? Json(failure.free_bytes) : Json()},
                     {"missing_bytes", known ? Json(std::max<int64_t>(0, failure.bytes - failure.free_bytes)) : Json()},
                     {"last_step", last > 0 ? Json(last) : Json()}}));
  abandoned_.insert(step);
}

void Events::evaluated(int64_t after, const MergedStep& evaluation) {
  const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  Json more = {{"step", after}, {"loss", finite(evaluation.eval_loss)}, {"seconds", evaluation.eval_s}};
  for (size_t i = 0; i < eval_named_.size(); ++i) more[eval_named_[i]] = finite(evaluation.eval_named[i]);
  write_(event_line("evaluation", more));
}

void Events::step(const MergedStep& step) {
  if (step.evaluated()) evaluated(static_cast<int64_t>(step.step) + 1, step);
  if (step.skipped) write_(event_line("skipped", {{"step", step.step + 1}, {"so_far", ++skipped_}}));
}

void Events::warning(const std::string& text) { write_(event_line("warning", {{"text", text}})); }

void Events::failed(const Failure& failure) {
  write_(event_line("failure", {{"code", failure.code},
                                {"name", exit_name(failure.code)},
                                {"rank", failure.rank < 0 ? Json() : Json(failure.rank)},
                                {"what", failure.what}}));
}

void Events::ended(int exit_code, bool /*begins_again*/) {
  write_(event_line("ended", {{"exit_code", exit_code}, {"name", exit_name(exit_code)}}));
}

}  // namespace prun
