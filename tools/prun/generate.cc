// prun generate: continues a text with the model of a plan and the weights of a checkpoint. Ranks choose tokens; rank 0
// prints them to this launcher, which decodes and streams them.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/folder.h"
#include "checkpoint/history.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "environment.h"
#include "exec/job_run.h"
#include "job/build.h"
#include "job/device_check.h"
#include "job/generation.h"
#include "job/rank.h"
#include "job/settle.h"
#include "job/weights.h"
#include "job_options.h"
#include "launch/launch.h"
#include "standard_streams.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer_files.h"
#include "watch/observer.h"

namespace prun {
namespace {

double number(const char* option, const std::string& text, const char* range, bool (*fits)(double)) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !fits(value))
    throw usage_error(fmt::format("{} must be a number {}, not '{}'", option, range, text));
  return value;
}

uint64_t seed_of(const std::string& text) {
  errno = 0;
  const unsigned long long value = std::strtoull(text.c_str(), nullptr, 10);
  if (errno == ERANGE) throw usage_error(fmt::format("--seed must be a number below 2^64, not '{}'", text));
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
    throw usage_error(fmt::format("--seed must be a whole number of at least 0, not '{}'", text));
  return value;
}

void declare_generation(OptionTable& table, GenerationSettings& s) {
  Sampling& sampling = s.options.sampling;
  sampling.temperature = 0.8;
  sampling.top_k = 40;
  for (const char* name : {"--from", "--checkpoint"})
    table.text(name, "DIR", s.checkpoint,
               "of a plan, its weights: a checkpoint, the newest in a folder, or a Hugging Face folder");
  table.parsed(
      "--prompt", "TEXT",
      [&s](const std::string& text) {
        s.prompt = text;
        s.has_prompt = true;
      },
      "the text to continue");
  table.whole("--tokens", "N", s.tokens, 1, "how many to make at most (default 200, if the context has room)");
  table.parsed(
      "--temperature", "T",
      [&sampling](const std::string& text) {
        sampling.temperature =
            number("--temperature", text, "of at least 0", [](double t) { return t >= 0 && t < 1e30; });
      },
      "of the choice (default 0.8); 0: always the most likely token");
  table.parsed(
      "--top-k", "K", [&sampling](const std::string& text) { sampling.top_k = whole_number("--top-k", text, 0); },
      "choose among the K most likely tokens (default 40; 0: all)");
  table.parsed(
      "--top-p", "P",
      [&sampling](const std::string& text) {
        sampling.top_p = number("--top-p", text, "above 0, at most 1", [](double p) { return p > 0 && p <= 1; });
      },
      "choose among the most likely tokens that add up to this probability (default 1: all)");
  table.parsed(
      "--seed", "N", [&sampling](const std::string& text) { sampling.seed = seed_of(text); },
      "of random choices (default 0)");
  table.text("--tokenizer", "FILE|none", s.tokenizer,
             "tokenizer.json (default: that of the weights, where they know it; else each byte is a token)");
}

// The tokens so far, and the streamed text.
class Text {
 public:
  Text(const Tokenizer& tokenizer, bool streams) : tokenizer_(tokenizer), streams_(streams) {}

  // Parses rank 0's line "TOKEN LOG_PROBABILITY".
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
    flush_output();
  }

  // Returns "100 tokens, 83.2 a second". The rate omits the first token, which includes the prompt and the start of
  // ranks.
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
  std::chrono::steady_clock::time_point first_, last_;  // times of the first and the last token
  std::vector<int64_t> ids_;
  std::vector<double> log_probabilities_;
  std::string text_;
};

// Throws usage_error if the tokens do not fit the model's vocabulary.
void check_vocabulary(const GenerationSettings& settings, const Tokenizer& tokenizer, const Plan& plan) {
  const int64_t vocabulary = vocabulary_of(plan.graph);
  if (settings.tokenizer.empty() && vocabulary > tokenizer.size())
    throw usage_error(
        fmt::format("the model has {} tokens, and without --tokenizer FILE a token is a byte: name the "
                    "tokenizer.json that its training data was made with",
                    vocabulary));
  for (const int32_t id : settings.options.prompt)
    if (id >= vocabulary)
      throw usage_error(fmt::format("the prompt has the token {}, and the model has {} (the tokenizer {})", id,
                                    vocabulary, tokenizer.size()));
}

Job generation_job(JobSpec& spec, const Tokenizer& tokenizer) {
  Plan plan;
  settle_kernels(spec);
  Job job = build_job(spec, spec.launch.nproc, &plan);
  job.numerics = settled_numerics(spec);
  check_vocabulary(spec.generation, tokenizer, plan);
  std::string& folder = spec.checkpoint.resume = spec.generation.checkpoint;
  if (!checkpoint::is_hf_folder(folder)) folder = checkpoint::resolve(folder);
  const bool ema = spec.checkpoint.ema;
  require_fit(checkpoint::open_weights(folder, spec.checkpoint.base, true, checkpoint::parameters_or_averages(ema)),
              job);
  if (!checkpoint::is_hf_folder(folder))
    checkpoint::Reader(folder).verify(ema ? checkpoint::Part::state : checkpoint::Part::parameters);
  return job;
}

// Replaces locations in errors by the folder, because the substitute plan of a folder is not the user's.
Job job_of(JobSpec& spec, const Tokenizer& tokenizer, const std::string& folder) {
  try {
    return generation_job(spec, tokenizer);
  } catch (const Error& error) {
    if (folder.empty() || !error.site()) throw;
    const Exit code = error.code() == Exit::plan ? Exit::usage : error.code();
    throw Error(code, fmt::format("{}: {}", folder, error.message()));
  }
}

class Generate final : public PlanCommand {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;
  const char* json_help() const override { return "one JSON object at the end: prompt, ids, log_probabilities, text"; }
};

void Generate::declare(OptionTable& table) {
  declare_plan(table, job_);
  table.group("text");
  declare_generation(table, job_.generation);
  option::base(table, job_);
  option::ema(table, job_);
  table.group("ranks and devices");
  option::transport(table, job_);
  option::device(table, job_);
  option::device_options(table, job_);
  option::kernels(table, job_,
                  "kernels of CPUs: any, avx2, avx512, and with +bf16, +pairs, +tiles (default: the fastest)");
  option::bind(table, job_);
  option::pad_vocabulary(table, job_);
  option::timeout(table, job_);
}

void Generate::settle() {
  job_.purpose = Purpose::generate;
  check_ranks(job_);
  require_plan();
  check_generation_options(job_.generation, job_.plan);
  check_transport_hint(job_);
}

int Generate::run() {
  warn_of_useless_variables();
  const DeviceReport devices = check_devices(job_);
  settle_alone(job_, "generate");
  GenerationSettings& settings = job_.generation;
  const std::string folder = std::filesystem::is_directory(job_.plan) ? job_.plan : "";
  if (!folder.empty()) take_folder(job_);
  if (settings.tokenizer.empty()) settings.tokenizer = known_tokenizer(settings.checkpoint);
  if (settings.tokenizer == "none") settings.tokenizer.clear();
  const std::unique_ptr<Tokenizer> tokenizer =
      settings.tokenizer.empty() ? byte_tokenizer() : read_tokenizer(settings.tokenizer);
  settings.options.prompt = tokenizer->encode(settings.prompt);
  settings.options.ends = tokenizer->ends();
  std::ranges::copy(ends_of_folder(settings.checkpoint), std::back_inserter(settings.options.ends));
  Observer observer(job_.watch, 0);
  Launch launch(job_.launch, observer);
  const Job job = job_of(job_, *tokenizer, folder);
  check_device_memory(job_, job, devices);

  Text text(*tokenizer, !line_.json);
  observer.told = [&](const std::string& line) { text.take(line); };
  if (!line_.json) fmt::print("{}", settings.prompt);
  flush_output();
  observer.show(job);
  const int code = launch.run(serialize_job(job), [&](const RankStart& start) {
    RecorderHeader* recorder = static_cast<RecorderHeader*>(start.recorder);
    recorder->capacity = Observer::recorder_capacity(job_.watch);
    recorder->magic = kRecorderMagic;
    return run_rank(start, job_, devices);
  });
  observer.finish(code);
  if (code != 0) return code;
  fmt::print("{}\n", line_.json ? text.json(settings.options.prompt) : "");
  flush_output();
  fmt::print(stderr, "{}\n", text.rate());
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_generate() { return std::make_unique<Generate>(); }

}  // namespace prun
