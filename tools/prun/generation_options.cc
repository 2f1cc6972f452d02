// The options of `prun generate`. Their names are those of Hugging Face's generate() and of nanoGPT's sample.py.
#include "generation_options.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

double number(const char* option, const std::string& text, const char* range, bool (*fits)(double)) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !fits(value))
    throw usage_error(fmt::format("{} wants a number {}, not '{}'", option, range, text));
  return value;
}

uint64_t seed_of(const std::string& text) {
  errno = 0;
  const unsigned long long value = std::strtoull(text.c_str(), nullptr, 10);
  if (errno == ERANGE) throw usage_error(fmt::format("--seed wants a number below 2^64, not '{}'", text));
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
    throw usage_error(fmt::format("--seed wants a whole number of at least 0, not '{}'", text));
  return value;
}

}  // namespace

void declare_generation(OptionTable& table, GenerationSettings& s) {
  Sampling& sampling = s.options.sampling;
  sampling.temperature = 0.8;
  sampling.top_k = 40;
  table.text("--checkpoint", "DIR", s.checkpoint,
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

}  // namespace prun
