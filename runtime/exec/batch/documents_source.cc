// pack = "documents" of prun.data.bytes and prun.data.tokens: a sample is a stream of whole documents and padding. The
// last token of a document has no target, nor has padding.
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "data/data_files.h"
#include "data/packed_documents.h"
#include "device/ids.h"
#include "exec/batch/document_layout.h"
#include "exec/batch/sample_source.h"

namespace prun {
namespace {

class DocumentsSource final : public SampleSource {
 public:
  explicit DocumentsSource(const SourceContext& context)
      : source_(context.source),
        use_(context.use),
        seed_(context.seed),
        files_(source_, ""),
        packed_(files_, source_, seed_) {
    PRUN_CHECK(packed_.streams() > 0, "no stream");
  }

  void fill(std::span<const BatchOutput> outputs, int64_t slot, int64_t sample, const std::vector<void*>& to) override {
    load(stream_of(sample));
    for (const BatchOutput& out : outputs) {
      int32_t* data = static_cast<int32_t*>(to[out.at]) + slot * out.per_sample;
      if (DocumentLayout::has(out))
        layout_.fill(out, data);
      else
        fill_ids(out, data);
    }
  }

  bool balances() const override { return true; }
  std::vector<int64_t> shares(int64_t sample, int64_t ranks) override {
    load(stream_of(sample));
    return layout_.shares(ranks);
  }
  double cost(int64_t sample) override {
    double sum = 0;
    for (const DocumentRun& run : packed_.stream(stream_of(sample)))
      sum += static_cast<double>(run.length) * static_cast<double>(run.length);
    return sum;
  }

  std::optional<int64_t> counted_targets(const BatchOutput& targets, int64_t sample) override {
    if (targets.ignored && *targets.ignored >= 0) return std::nullopt;  // a token may be an ignored id
    int64_t count = 0;
    for (const DocumentRun& run : packed_.stream(stream_of(sample))) count += run.length - 1;
    return count;
  }

  std::string path(const BatchOutput&) const override { return files_.place(0).path; }

 private:
  int64_t stream_of(int64_t sample) const {
    const int64_t streams = packed_.streams();
    if (source_.order == "random") return random_place(sample, streams, seed_, use_);
    return source_.order == "given" ? sample % streams : epoch_place(sample, streams, seed_, use_);
  }

  // Reads the stream's tokens.
  void load(int64_t stream) {
    if (loaded_ == stream) return;
    loaded_.reset();
    const int64_t width = element_width(files_.element());
    layout_.clear(source_.capacity);
    raw_.resize(source_.capacity * width);
    for (const DocumentRun& run : packed_.stream(stream)) {
      files_.read(run.first, run.length, raw_.data() + layout_.size() * width);
      layout_.add(run.length);
    }
    documents_end_ = layout_.size();
    layout_.pad();
    loaded_ = stream;
  }

  void fill_ids(const BatchOutput& out, int32_t* data) const {
    const int64_t shift = out.is_target() ? 1 : 0;
    with_elements(files_.element(), raw_.data(), [&](const auto* ids) {
      for (int64_t i = 0; i < out.per_sample; ++i) {
        const int64_t token = out.element(i), inside = token + shift;
        const int64_t id = inside < documents_end_ ? static_cast<int64_t>(ids[inside]) : source_.document_end;
        if (shift > 0 && (layout_.ends_at(token) || out.ignores(id)))
          data[i] = kIgnoredTarget;
        else if (std::cmp_less(id, source_.vocab))
          data[i] = static_cast<int32_t>(id);
        else
          out_of_vocabulary(id, inside);
      }
    });
  }

  [[noreturn]] void out_of_vocabulary(int64_t id, int64_t inside) const {
    int64_t before = 0;
    for (const DocumentRun& run : packed_.stream(*loaded_)) {
      if (inside < before + run.length) {
        const DataFiles::Place found = files_.place(run.first + inside - before);
        throw usage_error(fmt::format(
            "{}: token {} at position {} is not in the vocabulary of {}: make vocab larger or check that the file is "
            "what data says",
            found.path, id, found.element, source_.vocab));
      }
      before += run.length;
    }
    PRUN_CHECK(false, fmt::format("token {} of the stream", inside));
  }

  DataSource source_;
  SampleUse use_;
  uint64_t seed_;
  DataFiles files_;
  PackedDocuments packed_;
  std::optional<int64_t> loaded_;  // the stream in raw_ and layout_
  int64_t documents_end_ = 0;      // tokens of the stream without padding
  DocumentLayout layout_;
  std::vector<std::byte> raw_;  // its tokens in the file's element type
};

}  // namespace

std::unique_ptr<SampleSource> make_documents_source(const SourceContext& context) {
  return std::make_unique<DocumentsSource>(context);
}

}  // namespace prun
