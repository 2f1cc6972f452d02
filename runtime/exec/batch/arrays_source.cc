// prun.data.arrays: entry i of each input's files is sample i.
//
// With the rule `pad` an epoch has so many slots that they are a whole number of batches; slots after the last sample
// contain copies of the first ones, whose targets are ignored. With `drop` an epoch ends with its last whole batch.
#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "data/data_files.h"
#include "exec/batch/sample_source.h"

namespace prun {
namespace {

class ArraysSource final : public SampleSource {
 public:
  explicit ArraysSource(const SourceContext& context)
      : source_(context.source), use_(context.use), seed_(context.seed) {
    const int64_t batch = source_.global_batch, left = source_.count % batch;
    slots_ = source_.count;
    if (source_.whole == 0 && source_.last == "drop" && left < source_.count) slots_ -= left;
    if (source_.whole == 0 && source_.last == "pad" && left > 0) slots_ += batch - left;
  }

  void add(const BatchOutput& out) override {
    if (files_.count(out.name) == 0) files_.try_emplace(out.name, source_, out.name);
  }

  void fill(std::span<const BatchOutput> outputs, int64_t slot, int64_t sample, const std::vector<void*>& to) override {
    const auto [row, padding] = row_of(sample);
    for (const BatchOutput& out : outputs) {
      const DataFiles& files = files_.at(out.name);
      const int64_t n = out.whole(), at = row;
      raw_.resize(n * element_width(files.element()));
      files.read(row * n, n, raw_.data());
      store_sample(out, files.element(), raw_.data(), out.is_target() ? 1 : source_.scale, padding, slot, to[out.at],
                   [&](int64_t id, int64_t position) { outside(out, id, at, position); });
    }
  }

  std::string path(const BatchOutput& out) const override { return files_.at(out.name).place(0).path; }

 private:
  struct Row {
    int64_t row;
    bool padding;
  };
  Row row_of(int64_t sample) const {
    if (source_.order == "random") return {source_.first + random_place(sample, source_.count, seed_, use_), false};
    const int64_t epoch = sample / slots_, inside = sample % slots_;
    const bool padding = inside >= source_.count;
    const int64_t place = padding ? (inside - source_.count) % source_.count : inside;
    if (source_.order == "given") return {source_.first + place, padding};
    return {source_.first + epoch_place(epoch * source_.count + place, source_.count, seed_, use_), padding};
  }

  [[noreturn]] void outside(const BatchOutput& out, int64_t id, int64_t row, int64_t position) const {
    throw usage_error(fmt::format(
        "{}: the label {} of sample {} at position {} is neither in the {} logits of a row nor {}, which is ignored",
        files_.at(out.name).place(row * out.whole()).path, id, row, position, out.classes, *out.ignored));
  }

  DataSource source_;
  SampleUse use_;
  uint64_t seed_;
  int64_t slots_ = 0;  // of an epoch
  std::map<std::string, DataFiles> files_;
  std::vector<std::byte> raw_;  // a sample in the file's element type
};

}  // namespace

std::unique_ptr<SampleSource> make_arrays_source(const SourceContext& context) {
  return std::make_unique<ArraysSource>(context);
}

}  // namespace prun
