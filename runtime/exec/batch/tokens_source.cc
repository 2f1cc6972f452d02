// prun.data.bytes and prun.data.tokens: windows of context + 1 tokens. Inputs are all but the last, targets all but the
// first; a rank may need a part of each. In epochs a window begins with the last token of the previous one.
#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "data/data_files.h"
#include "exec/batch/sample_source.h"

namespace prun {
namespace {

class TokensSource final : public SampleSource {
 public:
  explicit TokensSource(const SourceContext& context)
      : source_(context.source), use_(context.use), seed_(context.seed), files_(source_, "") {}

  // A token after the end of a document is not a target.
  void fill(std::span<const BatchOutput> outputs, int64_t slot, int64_t sample, const std::vector<void*>& to) override {
    const int64_t context = outputs[0].positions->whole(), width = element_width(files_.element());
    const int64_t at = begin_of_window(sample, context);
    raw_.resize((context + 1) * width);
    files_.read(at, context + 1, raw_.data());
    for (const BatchOutput& out : outputs) {
      int32_t* data = static_cast<int32_t*>(to[out.at]) + slot * out.per_sample;
      const int64_t shift = out.is_target() ? 1 : 0;
      with_elements(files_.element(), raw_.data(), [&](const auto* ids) {
        for (int64_t i = 0; i < out.per_sample; ++i) {
          const int64_t inside = out.positions->of(i) + shift;
          const bool ends = shift > 0 && static_cast<int64_t>(ids[inside - 1]) == source_.document_end;
          if (ends || out.ignores(static_cast<int64_t>(ids[inside])))
            data[i] = kIgnoredTarget;
          else if (std::cmp_less(static_cast<int64_t>(ids[inside]), source_.vocab))
            data[i] = static_cast<int32_t>(ids[inside]);
          else
            out_of_vocabulary(static_cast<int64_t>(ids[inside]), at + inside);
        }
      });
    }
  }

  std::string path(const BatchOutput&) const override { return files_.place(0).path; }

 private:
  int64_t begin_of_window(int64_t sample, int64_t context) const {
    if (source_.order == "random") return source_.first + random_place(sample, source_.count - context, seed_, use_);
    const int64_t windows = (source_.count - 1) / context;
    return source_.first +
           context * (source_.order == "given" ? sample % windows : epoch_place(sample, windows, seed_, use_));
  }

  [[noreturn]] void out_of_vocabulary(int64_t token, int64_t element) const {
    const DataFiles::Place found = files_.place(element);
    throw usage_error(fmt::format(
        "{}: token {} at position {} is not in the vocabulary of {}: make vocab larger or check that the file is "
        "what data says",
        found.path, token, found.element, source_.vocab));
  }

  DataSource source_;
  SampleUse use_;
  uint64_t seed_;
  DataFiles files_;
  std::vector<std::byte> raw_;  // a sample in the file's element type
};

}  // namespace

std::unique_ptr<SampleSource> make_tokens_source(const SourceContext& context) {
  return std::make_unique<TokensSource>(context);
}

}  // namespace prun
