// prun.data.index: the global index of the sample.
#include "exec/batch/sample_source.h"

namespace prun {
namespace {

class IndexSource final : public SampleSource {
 public:
  explicit IndexSource(const SourceContext& context) : first_(context.source.first) {}

  void fill(std::span<const BatchOutput> outputs, int64_t slot, int64_t sample, const std::vector<void*>& to) override {
    for (const BatchOutput& out : outputs)
      for (int64_t i = 0, n = out.per_sample; i < n; ++i)
        store_element(out.dtype, to[out.at], slot * n + i, static_cast<double>(first_ + sample));
  }
  bool reads_ahead() const override { return false; }

 private:
  int64_t first_;
};

}  // namespace

std::unique_ptr<SampleSource> make_index_source(const SourceContext& context) {
  return std::make_unique<IndexSource>(context);
}

}  // namespace prun
