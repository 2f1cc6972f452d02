// prun generate: the model of a plan, with the weights of a checkpoint, continues a text. Ranks choose tokens; rank 0
// tells them here, where they become text as they come.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/history.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "comm/transport/interfaces.h"
#include "comm/transport/transport_choice.h"
#include "commands.h"
#include "exec/job_run.h"
#include "job/build.h"
#include "job/device_check.h"
#include "job/generation_weights.h"
#include "job/rank.h"
#include "job/settle.h"
#include "launch/launch.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer_files.h"
#include "watch/observer.h"

namespace prun {
namespace {

// What has been made so far, and the stream of it.
class Text {
 public:
  Text(const Tokenizer& tokenizer, bool streams) : tokenizer_(tokenizer), streams_(streams) {}

  // "TOKEN LOG_PROBABILITY", as rank 0 says it.
  void take(const std::string& line) {
    char* rest = nullptr;
    const long id = std::strtol(line.c_str(), &rest, 10);
    last_ = std::chrono::steady_clock::now();
    if (ids_.empty()) first_ = last_;
    ids_.push_back(id);
    log_probabilities_.push_back(std::strtod(rest, nullptr));
    const std::string piece = tokenizer_.piece(id);
    text_ += piece;
    if (!streams_) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  }

  // "100 tokens, 83.2 a second": after the first, which waits for the prompt and for ranks to start.
  std::string rate() const {
    const double seconds = std::chrono::duration<double>(last_ - first_).count();
    std::string made = counted(std::ssize(ids_), "token");
    if (ids_.size() < 2 || seconds <= 0) return made;
    const double rate = static_cast<double>(ids_.size() - 1) / seconds;
    return fmt::format("{}, {:.{}f} a second", made, rate, rate < 100 ? 1 : 0);
  }

  std::string json(const std::vector<int32_t>& prompt) const {
    const nlohmann::ordered_json all = {
        {"prompt", prompt}, {"ids", ids_}, {"log_probabilities", log_probabilities_}, {"text", text_}};
    return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

 private:
  const Tokenizer& tokenizer_;
  bool streams_;
  std::chrono::steady_clock::time_point first_, last_;  // tokens
  std::vector<int64_t> ids_;
  std::vector<double> log_probabilities_;
  std::string text_;
};

void settle(Options& options) {
  LaunchOptions& launch = options.job.launch;
  check_transport_name(options.job.world.transport, options.job.world.plugin_dirs);
  options.job.world.network_interface = interface_of_job("", 1, "");
  launch.recorder_bytes = recorder_bytes(Observer::recorder_capacity(options.job.watch));
  launch.command = fmt::format("generate {} --nproc {}", options.job.plan, launch.nproc);
  options.job.binding = Binding(options.job.bind, launch.nproc);
  options.job.check_replicas = 0;
  describe_to_views(options.job);
}

// Whether the tokens are the model's.
void check_vocabulary(const GenerationSettings& settings, const Tokenizer& tokenizer, const Plan& plan) {
  const int64_t vocabulary = vocabulary_of(plan.graph);
  if (settings.tokenizer.empty() && vocabulary > tokenizer.size())
    throw usage_error(
        fmt::format("the model knows {} tokens, and without --tokenizer FILE a token is a byte: name the "
                    "tokenizer.json that its training data was made with",
                    vocabulary));
  for (const int32_t id : settings.options.prompt)
    if (id >= vocabulary)
      throw usage_error(fmt::format("the prompt has the token {}, and the model knows {} (the tokenizer {})", id,
                                    vocabulary, tokenizer.size()));
}

Job generation_job(Options& options, const Tokenizer& tokenizer) {
  Plan plan;
  settle_kernels(options.job);
  Job job = build_job(options.job, options.job.launch.nproc, &plan);
  job.kernels = options.job.kernels.chosen;
  check_vocabulary(options.job.generation, tokenizer, plan);
  std::string& folder = options.job.checkpoint.resume = options.job.generation.checkpoint;
  if (!checkpoint::is_hf_folder(folder)) folder = checkpoint::resolve(folder);
  require_fit(checkpoint::open_weights(folder), job);
  if (!checkpoint::is_hf_folder(folder)) checkpoint::Reader(folder).verify(checkpoint::Part::parameters);
  return job;
}

// The lines of the plan that stands for a folder are nobody's.
Job job_of(Options& options, const Tokenizer& tokenizer, const std::string& folder) {
  try {
    return generation_job(options, tokenizer);
  } catch (const Error& error) {
    if (folder.empty() || !error.site()) throw;
    const Exit code = error.code() == Exit::plan ? Exit::usage : error.code();
    throw Error(code, fmt::format("{}: {}", folder, error.message()));
  }
}

}  // namespace

int generate_command(Options& options) {
  const DeviceReport devices = check_devices(options.job);
  settle(options);
  GenerationSettings& settings = options.job.generation;
  const std::string folder = std::filesystem::is_directory(options.job.plan) ? options.job.plan : "";
  if (!folder.empty()) take_folder(options.job);
  if (settings.tokenizer.empty()) settings.tokenizer = known_tokenizer(settings.checkpoint);
  if (settings.tokenizer == "none") settings.tokenizer.clear();
  const std::unique_ptr<Tokenizer> tokenizer =
      settings.tokenizer.empty() ? byte_tokenizer() : read_tokenizer(settings.tokenizer);
  settings.options.prompt = tokenizer->encode(settings.prompt);
  settings.options.ends = tokenizer->ends();
  std::ranges::copy(ends_of_folder(settings.checkpoint), std::back_inserter(settings.options.ends));
  Observer observer(options.job.watch, 0);
  Launch launch(options.job.launch, observer);
  const Job job = job_of(options, *tokenizer, folder);
  check_device_memory(options.job, job, devices);

  Text text(*tokenizer, !options.json);
  observer.told = [&](const std::string& line) { text.take(line); };
  if (!options.json) fmt::print("{}", settings.prompt);
  std::fflush(stdout);
  observer.show(job);
  const int code = launch.run(serialize_job(job), [&](const RankStart& start) {
    RecorderHeader* recorder = static_cast<RecorderHeader*>(start.recorder);
    recorder->capacity = Observer::recorder_capacity(options.job.watch);
    recorder->magic = kRecorderMagic;
    return run_rank(start, options.job, devices);
  });
  observer.finish(code);
  if (code != 0) return code;
  fmt::print("{}\n", options.json ? text.json(settings.options.prompt) : "");
  std::fflush(stdout);
  fmt::print(stderr, "{}\n", text.rate());
  return 0;
}

}  // namespace prun
