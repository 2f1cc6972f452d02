// prun.data.random: normal numbers and uniform ids, functions of the seed and the sample's global index.
#include <algorithm>

#include "exec/batch/document_layout.h"
#include "exec/batch/sample_source.h"
#include "prun/philox.h"

namespace prun {
namespace {

class RandomSource final : public SampleSource {
 public:
  explicit RandomSource(const SourceContext& context)
      : source_(context.source), use_(context.use), seed_(context.seed) {}

  void add(const BatchOutput& out) override {
    if (source_.capacity == 0) return;
    tokens_ = out.whole() / (DocumentLayout::has(out) && out.name != "positions" ? 2 : 1);
  }

  bool balances() const override { return tokens_ > 0; }
  std::vector<int64_t> shares(int64_t sample, int64_t ranks) override {
    lay_out(sample);
    return layout_.shares(ranks);
  }
  double cost(int64_t sample) override {
    lay_out(sample);
    return layout_.cost();
  }

  void fill(std::span<const BatchOutput> outputs, int64_t slot, int64_t sample, const std::vector<void*>& to) override {
    if (tokens_ > 0) lay_out(sample);
    for (const BatchOutput& out : outputs) {
      if (tokens_ > 0 && DocumentLayout::has(out)) {
        layout_.fill(out, static_cast<int32_t*>(to[out.at]) + slot * out.per_sample);
        continue;
      }
      const uint64_t key = sample_key(use_) + (out.is_target() ? 1 : 0);  // a pipeline stage may need only one of them
      if (out.dtype != Dtype::i32) {
        normals(out, key, slot, sample, to[out.at]);
        continue;
      }
      for (int64_t i = 0, n = out.per_sample; i < n; ++i)
        static_cast<int32_t*>(to[out.at])[slot * n + i] =
            random_id(out, key, static_cast<uint64_t>(sample * out.whole() + out.element(i)));
    }
  }

 private:
  // Draws the documents of a stream: lengths from 1 to half of it.
  void lay_out(int64_t sample) {
    constexpr uint64_t kLengths = uint64_t{1} << 33;  // apart from the keys of samples and masks
    layout_.clear(tokens_);
    while (layout_.size() < tokens_) {
      const uint64_t place = static_cast<uint64_t>(sample * tokens_ + layout_.size());
      const int64_t length =
          philox::integer(seed_, sample_key(use_) + kLengths, place, 1, std::max<int64_t>(1, tokens_ / 2));
      layout_.add(std::min(length, tokens_ - layout_.size()));
    }
  }

  void normals(const BatchOutput& out, uint64_t key, int64_t slot, int64_t sample, void* to) const {
    const auto draw = [&](int64_t element, int64_t count, float* numbers) {
      random_normals(seed_, key, static_cast<uint64_t>(sample * out.whole() + element), count, numbers);
    };
    out.for_runs([&](int64_t first, int64_t element, int64_t n) {
      const int64_t begin = slot * out.per_sample + first;
      if (out.dtype == Dtype::f32) return draw(element, n, static_cast<float*>(to) + begin);
      float numbers[256];
      for (int64_t from = 0; from < n; from += std::ssize(numbers)) {
        const int64_t count = std::min(n - from, std::ssize(numbers));
        draw(element + from, count, numbers);
        for (int64_t i = 0; i < count; ++i)
          store_element(out.dtype, to, begin + from + i, static_cast<double>(numbers[i]));
      }
    });
  }

  int32_t random_id(const BatchOutput& out, uint64_t key, uint64_t place) const {
    if (out.ignored) return random_target(out, key, place);
    const auto id = [&](uint64_t of) { return philox::integer(seed_, of, place, 0, source_.vocab - 1); };
    if (source_.document_end >= 0 && out.is_target() && id(sample_key(use_)) == source_.document_end)
      return kIgnoredTarget;
    return static_cast<int32_t>(id(key));
  }

  // Returns a random target where some do not count: a quarter of them, so that ranks and microbatches count
  // differently, but never the first one of a batch.
  int32_t random_target(const BatchOutput& out, uint64_t key, uint64_t place) const {
    const auto draw = [&](uint64_t of, int64_t most) { return philox::integer(seed_, of, place, 0, most); };
    const int64_t id = draw(key, source_.vocab - 1);
    const bool first = place % static_cast<uint64_t>(source_.global_batch * out.whole()) == 0;
    if (first) return static_cast<int32_t>(out.ignores(id) ? (id + 1) % source_.vocab : id);
    constexpr uint64_t kMasks = uint64_t{1} << 32;  // apart from the keys of samples
    return out.ignores(id) || draw(key + kMasks, 3) == 0 ? kIgnoredTarget : static_cast<int32_t>(id);
  }

  DataSource source_;
  SampleUse use_;
  uint64_t seed_;
  int64_t tokens_ = 0;  // of a stream of documents; 0 = the model has no documents
  DocumentLayout layout_;
};

}  // namespace

std::unique_ptr<SampleSource> make_random_source(const SourceContext& context) {
  return std::make_unique<RandomSource>(context);
}

}  // namespace prun
