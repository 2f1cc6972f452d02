// run.json is written when the run begins, and replaced by a rename when it has ended. Without an end the run is
// active, or was killed together with its launcher.
#include "watch/run_folder.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/field_json.h"
#include "base/sha256.h"
#include "base/text.h"
#include "ir/state.h"
#include "watch/events.h"
#include "watch/run_environment.h"

namespace prun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMostLines = 10'000;  // lines per file of a run without a folder

std::string time_text(double seconds, const char* format) {
  const std::time_t whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&whole, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns a hash of the plan, its modules, arguments and ranks: equal for runs that train the same.
std::string short_hash(const WatchSpec& spec, const std::map<std::string, std::string>& modules) {
  std::string text = read_file(spec.plan_file);
  for (const auto& [path, module] : modules) text += fmt::format("\n{}\n{}", path, module);
  for (const auto& [name, value] : spec.settings) text += fmt::format("\n{}={}", name, value);
  text += fmt::format("\n{} x {} on {}", spec.nodes, spec.nproc, spec.device);
  return hex(sha256(text).substr(0, 3));
}

// Returns a path that remains valid if both folders are moved together.
std::string relative_to(const std::string& folder, const std::string& path) {
  std::error_code error;
  const fs::path relative = fs::relative(path, folder, error);
  return error || relative.empty() ? path : relative.string();
}

// Returns the source location at the end of an op's text, "... at plans/zero3.lua:12" or "..., plans/zero3.lua:12"; ""
// and 0: none.
std::pair<std::string, int> source_of(const std::string& op) {
  const size_t colon = op.rfind(':'), begin = op.rfind(' ', colon) + 1;
  if (colon == std::string::npos || colon + 1 == op.size() || begin >= colon) return {"", 0};
  const std::string digits = op.substr(colon + 1);
  if (digits.find_first_not_of("0123456789") != std::string::npos || digits.size() > 9) return {"", 0};
  return {op.substr(begin, colon - begin), std::stoi(digits)};
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

void write_whole(const std::string& path, const std::string& text) {
  OutputFile file(path, "run");
  file.begin();
  file.write(text);
  file.flush();
  if (!file.failure().empty()) throw usage_error(fmt::format("cannot write {}: {}", path, file.failure()));
}

}  // namespace

RunFolder::RunFolder(const WatchSpec& spec) : spec_(spec), started_(wall_time()) {}

RunFolder::~RunFolder() = default;

void RunFolder::begin(const Job& job, const std::map<std::string, std::string>& modules) {
  modules_ = modules;
  const Program& program = job.classes.front();
  std::string name = spec_.name.empty() ? fs::path(spec_.plan).stem().string() : spec_.name;
  // Commands with the id can be copied into a shell, also for "plan (1).lua".
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return c < 0x80 && std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; }, '_');
  id_ = fmt::format("{}-{}-{}", time_text(started_, "%Y%m%d-%H%M%S"), name, short_hash(spec_, modules_));
  Json text = {{"ranks", job.class_of_rank.size()},
               {"mesh", program.mesh.text()},
               {"device", program.device},
               {"parameters", parameter_count(job)},
               {"steps", program.schedule.steps},
               {"tokens_per_step", program.tokens_per_step},
               {"begin", fields_json(program.schedule.begin)}};
  text.update(fields_json(job.numerics));
  job_text_ = text.dump();
  if (!spec_.runs.empty()) return make(spec_.runs);
  if (spec_.checkpoints.empty()) return;
  try {
    make(kRunsFolder);
  } catch (const Error& error) {
    trouble_ = error.what();
  }
}

// Two runs that begin in the same second get different folders.
void RunFolder::make(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string id = id_;
  bool made = false;
  for (int number = 2; !error && !made; ++number) {
    path_ = (fs::path(folder) / id_).string();
    made = fs::create_directory(path_, error);
    if (!made && !error) id_ = fmt::format("{}-{}", id, number);
  }
  if (error) {
    path_.clear();
    throw usage_error(fmt::format("cannot make a folder for this run in {}: {}", folder, error.message()));
  }
  const auto file = [this](const std::string& name) { return (fs::path(path_) / name).string(); };
  log_.open(file(kRunLog));
  metrics_.open(file("metrics.jsonl"));
  events_.open(file("events.jsonl"));
  for (auto& [rank, log] : rank_logs_) log.open(file(fmt::format("rank_{}.log", rank)));
  flock(log_.file()->descriptor(), LOCK_EX | LOCK_NB);  // the lock marks the run as active
  write_plan();
  write_whole(file("environment.json"), run_environment_json());
  if (!spec_.checkpoints.empty())  // run.json has the path for file systems without links
    fs::create_symlink(relative_to(path_, spec_.checkpoints), fs::path(path_) / "checkpoints", error);
  write_about();
}

// Makes `prun runs/<id>/plan.lua` the same run. A module named plan.lua keeps that name.
void RunFolder::write_plan() {
  const std::string own = fs::path(spec_.plan).filename().string();
  write_whole((fs::path(path_) / (modules_.contains("plan.lua") ? own : "plan.lua")).string(),
              read_file(spec_.plan_file));
  for (const auto& [path, text] : modules_) {
    const fs::path file = fs::path(path_) / path;
    std::error_code error;  // existing folders; a file that cannot be written reports itself
    fs::create_directories(file.parent_path(), error);
    write_whole(file.string(), text);
  }
}

std::string RunFolder::about_text(int exit_code) const {
  const auto relative = [&](const std::string& path) { return path.empty() ? Json() : Json(relative_to(path_, path)); };
  Json about = {{"format", kRunFormat},
                {"id", id_},
                {"plan", spec_.plan},
                {"arguments", spec_.words},
                {"directory", fs::current_path().string()},
                {"started", time_text(started_, "%Y-%m-%dT%H:%M:%SZ")}};
  about.update(Json::parse(job_text_));
  about["nodes"] = spec_.nodes;
  about["checkpoints"] = relative(spec_.checkpoints);
  about["resumed_from"] = relative(spec_.resumed_from);
  if (lineage_.known()) about.update(fields_json(lineage_));
  if (exit_code < 0) return about.dump(2) + "\n";
  const double now = wall_time();
  about["ended"] = time_text(now, "%Y-%m-%dT%H:%M:%SZ");
  about["seconds"] = std::round((now - started_) * 1e3) / 1e3;
  about["exit_code"] = exit_code;
  about["steps_done"] = steps_ > 0 ? last_.step + 1 : 0;
  about["loss"] = steps_ > 0 ? Json{{"first", number(first_.loss)}, {"last", number(last_.loss)}} : Json();
  return about.dump(2) + "\n";
}

void RunFolder::begins_with(const checkpoint::Lineage& lineage) {
  if (lineage_.known() || spec_.checkpoints.empty()) return;
  lineage_ = lineage;
  if (!path_.empty()) write_about();
}

void RunFolder::write_about() {
  const std::string path = (fs::path(path_) / kRunFile).string(), next = path + ".tmp";
  write_whole(next, about_text(exit_code_));
  fs::rename(next, path);
}

void KeptLines::write(std::string_view text) {
  if (file_ != nullptr) return file_->write(text);
  lines_.emplace_back(text);
  if (lines_.size() > kMostLines) lines_.pop_front();
}

void KeptLines::flush() {
  if (file_ != nullptr) file_->flush();
}

void KeptLines::open(const std::string& path) {
  file_ = std::make_unique<OutputFile>(path, fs::path(path).filename().string());
  file_->begin();
  for (const std::string& line : lines_) file_->write(line);
  lines_.clear();
  flush();
}

void RunFolder::step(const MergedStep& step) {
  if (steps_++ == 0) first_ = step;
  last_ = step;
}

void RunFolder::row(std::string_view row) { metrics_.write(row); }

// Flushed at once, because forked ranks would write buffered text a second time.
void RunFolder::log(std::string_view lines) {
  log_.write(lines);
  log_.flush();
}

void RunFolder::event(const std::string& line) {
  events_.write(line);
  events_.flush();
}

void RunFolder::rank_output(int rank, std::string_view text) {
  KeptLines& log = rank_logs_[rank];
  if (!path_.empty() && log.file() == nullptr) log.open((fs::path(path_) / fmt::format("rank_{}.log", rank)).string());
  log.write(text);
  log.flush();
}

void RunFolder::flush() { metrics_.flush(); }

void RunFolder::keep_flight(std::string flight, std::string program) {
  flight_ = std::move(flight);
  program_ = std::move(program);
}

void RunFolder::failed(const Failure& failure) { failure_ = failure; }

void RunFolder::write_failure() const {
  const auto file = [this](const char* name) { return (fs::path(path_) / name).string(); };
  const Json rank = {{"rank", failure_.rank}, {"host", failure_.host}, {"node", failure_.node}, {"pid", failure_.pid}};
  const auto [source, line] = source_of(failure_.op);
  const Json failure = {{"format", 1},
                        {"code", exit_code_},
                        {"name", exit_name(exit_code_)},
                        {"what", failure_.what},
                        {"who", failure_.rank < 0 ? Json() : rank},
                        {"op", failure_.op},
                        {"source", source.empty() ? Json() : Json{{"file", source}, {"line", line}}},
                        {"evidence", failure_.evidence},
                        {"next", failure_.next},
                        {"time", time_text(wall_time(), "%Y-%m-%dT%H:%M:%SZ")},
                        {"steps_done", steps_ > 0 ? last_.step + 1 : 0}};
  write_whole(file(kFailureFile), failure.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  if (!stacks_.empty()) write_whole(file(kStacksFile), stacks_);
  if (flight_.empty()) return;
  write_whole(file(kFlightFile), flight_);
  write_whole(file(kProgramFile), program_);
}

std::string RunFolder::end(int exit_code) {
  exit_code_ = exit_code;
  if (id_.empty()) return "";  // node 0 has the job
  const bool fails = exit_code != 0 && exit_code != static_cast<int>(Exit::preempted);
  try {
    const bool hung = exit_code == static_cast<int>(Exit::hang);
    if (path_.empty() && fails && (steps_ > 0 || hung)) make(kRunsFolder);
    if (path_.empty()) return trouble_.empty() ? "" : fmt::format("prun: {} (--runs DIR names another)\n", trouble_);
    if (fails) write_failure();
    flush();
    write_about();
    for (const OutputFile* file : {metrics_.file(), log_.file(), events_.file()})
      if (!file->failure().empty()) return fmt::format("prun: {} is incomplete: {}\n", file->path(), file->failure());
  } catch (const std::exception& error) {
    return fmt::format("prun: {}\n", error.what());
  }
  return fails ? fmt::format("  kept:     {0}   # prun explain {0} says what each rank was at\n", path_) : "";
}

}  // namespace prun
