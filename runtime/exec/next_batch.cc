// The next batch depends only on the seed and the global indices of its samples, never on the mesh. A step's first
// index is the number of samples that all earlier steps took, whatever their batch sizes. An evaluation batch's first
// index follows from its index in the evaluation, so that all evaluations read the same samples.
//
// Surprising fact: a batch has mostly been made before its op runs. While a step computes, a thread reads or draws the
// next step's samples (exec/read_ahead.h), because a batch is a function of its number alone. Indices are cheap and
// made directly.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <optional>
#include <span>
#include <utility>

#include "data/data_files.h"
#include "data/sample_order.h"
#include "device/element.h"
#include "device/ids.h"
#include "device/share.h"
#include "exec/count_targets.h"
#include "exec/host_ops.h"
#include "exec/read_ahead.h"
#include "ir/data_source.h"
#include "prun/philox.h"

namespace prun {
namespace {

class NextBatch final : public Kernel {
 public:
  NextBatch(const RankMemory& memory, const Op& op)
      : memory_(memory), source_(memory.program->bodies[memory.body].data) {
    const Share share = share_along(memory, op.attrs.text("axis"));
    PRUN_CHECK(source_.global_batch % share.of == 0,
               fmt::format("{} samples on {} ranks", source_.global_batch, share.of));
    PRUN_CHECK(op.attrs.text("tokens_axis").empty() || op.attrs.has("chunks"),
               "next_batch: tokens_axis without chunks");
    local_ = source_.global_batch / share.of;
    micro_ = local_ / op.attrs.integer("micro", 1);
    first_ = micro_ * share.index;
    stride_ = micro_ * share.of;
    const std::vector<std::string> names = names_between_commas(op.attrs.text("names"));
    std::vector<int64_t> bytes;
    for (size_t i = 0; i < op.writes.size(); ++i) {
      const Tensor& tensor = memory.program->tensors[op.writes[i]];
      bytes.push_back(tensor.bytes());
      data_.push_back(memory.data(op.writes[i]));
      if (is_share(op.attrs, i)) continue;
      Output out = output(names.at(i), tensor.dtype, tensor.count() / local_, i);
      if (tensor.dtype == Dtype::i32) out.positions.emplace(memory, op.attrs, out.per_sample);
      outputs_.push_back(std::move(out));
    }
    for (size_t i = 0; i < op.writes.size(); ++i)
      if (is_share(op.attrs, i)) add_share(op.attrs, i, memory.program->tensors[op.writes[i]].dtype);
    if (source_.kind != "index")
      ahead_.emplace(std::move(bytes), [this](int64_t batch, const std::vector<void*>& to) { fill(batch, to); });
  }

  void run() override {
    const int64_t batch = of_step_ ? memory_.table->step : memory_.table->eval_batch;
    if (ahead_)
      ahead_->take(batch, data_);
    else
      fill(batch, data_);
  }

 private:
  struct Output {
    std::string name;
    Dtype dtype;
    int64_t per_sample;
    size_t at;                                // index among the op's writes
    std::optional<TokenPositions> positions;  // positions of the rank's ids in a sample
    std::shared_ptr<DataFiles> files;
    std::optional<int64_t> ignored =
        std::nullopt;  // targets of this value do not count, and others are below `classes`
    int64_t classes = 0;
    bool is_target() const { return name == "y" || name == "targets"; }
    bool ignores(int64_t id) const { return ignored && id == *ignored; }
  };

  // A tensor of shares, and the whole samples that it is computed from.
  struct Shares {
    Output* targets;
    Dtype dtype;
    size_t at;
    Output all_targets, all_weights;
    std::optional<TargetCount> count;
    std::optional<double> of_evaluation;  // share of a target of weight 1 in all batches of an evaluation
  };

  static bool is_share(const Attrs& attrs, size_t output) {
    return attrs.has("share_of") && !names_between_commas(attrs.text("share_of")).at(output).empty();
  }

  Output output(const std::string& name, Dtype dtype, int64_t per_sample, size_t at) {
    Output out{name, dtype, per_sample, at, std::nullopt, nullptr};
    if (!source_.files.empty()) out.files = files_of(name);
    return out;
  }

  void add_share(const Attrs& attrs, size_t at, Dtype dtype) {
    const std::string of = names_between_commas(attrs.text("share_of")).at(at),
                      by = names_between_commas(attrs.text("weighted_by")).at(at);
    const auto targets = std::find_if(outputs_.begin(), outputs_.end(), [&](const Output& o) { return o.name == of; });
    PRUN_CHECK(targets != outputs_.end() && targets->positions, fmt::format("no targets '{}' to count", of));
    targets->ignored = attrs.integers("ignored").at(at);
    targets->classes = attrs.integers("classes").at(at);
    const int64_t whole = targets->positions->whole();
    Output all = output(of, Dtype::i32, whole, 0), weights = output(by.empty() ? of : by, Dtype::f64, whole, 0);
    all.positions.emplace(memory_, Attrs(), whole);
    all.ignored = targets->ignored, all.classes = targets->classes;
    Shares& shares = shares_.emplace_back(Shares{&*targets, dtype, at, std::move(all), std::move(weights), {}, {}});
    const std::string path = targets->files == nullptr ? "" : targets->files->place(0).path;
    shares.count.emplace(SampleReaders{[this, &shares](const std::string&, int64_t sample, std::vector<int32_t>& ids) {
                                         ids.resize(shares.all_targets.per_sample);
                                         read({&shares.all_targets, 1}, 0, sample, {ids.data()});
                                       },
                                       [this, &shares](const std::string&, int64_t sample, std::vector<double>& out) {
                                         read({&shares.all_weights, 1}, 0, sample, {out.data()});
                                         if (source_.kind == "random")
                                           for (double& weight : out) weight = std::abs(weight);
                                       }},
                         of, by, whole, path);
  }

  // Tokens and targets come from the same files; each array has a file of its own.
  std::shared_ptr<DataFiles> files_of(const std::string& name) {
    if (source_.kind == "arrays") return std::make_shared<DataFiles>(source_, name);
    if (tokens_ == nullptr) tokens_ = std::make_shared<DataFiles>(source_, "");
    return tokens_;
  }

  void fill(int64_t batch, const std::vector<void*>& to) {
    for (int64_t s = 0; s < local_; ++s) read(outputs_, s, local_sample(batch, s), to);
    for (Shares& shares : shares_) write(shares, batch, to);
  }

  // Reads a sample's `outputs` to index `s` of the tensors.
  void read(std::span<const Output> outputs, int64_t s, int64_t sample, const std::vector<void*>& to) {
    if (source_.kind == "index")
      index(outputs, s, sample, to);
    else if (source_.kind == "random")
      random(outputs, s, sample, to);
    else if (source_.kind == "arrays")
      rows(outputs, s, sample, to);
    else
      tokens(outputs, s, sample, to);
  }

  // A mean of a step counts over its batch. A mean of an evaluation counts over all its batches, whose losses are
  // averaged with the weights of full batches.
  void write(Shares& shares, int64_t batch, const std::vector<void*>& to) {
    double share = 0;
    if (of_step_) {
      share = shares.count->share({source_.global_batch, [&](int64_t slot) { return sample_at(batch, slot); },
                                   fmt::format("step {}", batch + 1)});
    } else {
      const int64_t batches = memory_.program->bodies[memory_.body].when.times;
      const int64_t all = source_.whole > 0 ? source_.whole : batches * source_.global_batch;
      if (!shares.of_evaluation)
        shares.of_evaluation = shares.count->share({all, [](int64_t slot) { return slot; }, "the evaluation"});
      share = *shares.of_evaluation;
    }
    const Output& targets = *shares.targets;
    const int32_t* ids = static_cast<const int32_t*>(to[targets.at]);
    for (int64_t s = 0, n = targets.per_sample; s < local_; ++s)
      shares.count->write(
          local_sample(batch, s), ids + s * n, n, [&](int64_t i) { return targets.positions->of(i); }, share,
          shares.dtype, to[shares.at], s * n);
  }

  // Returns the global index of the rank's s-th sample.
  int64_t local_sample(int64_t batch, int64_t s) const {
    return sample_at(batch, s / micro_ * stride_ + first_ + s % micro_);
  }

  // Returns the global index of a sample. `batch` is the step, or the index of a batch in the evaluation; `slot` is the
  // index in the batch.
  int64_t sample_at(int64_t batch, int64_t slot) const {
    const RunPosition& begin = memory_.program->schedule.begin;
    if (source_.whole > 0) return WholeSet{source_.whole, source_.global_batch}.sample(batch, slot);
    if (!of_step_) return batch * source_.global_batch + slot;
    return begin.left_out.sample_of(begin.samples + (batch - begin.step) * source_.global_batch + slot);
  }

  void index(std::span<const Output> outputs, int64_t s, int64_t sample, const std::vector<void*>& to) {
    for (const Output& out : outputs)
      for (int64_t i = 0, n = out.per_sample; i < n; ++i)
        store_element(out.dtype, to[out.at], s * n + i, static_cast<double>(source_.first + sample));
  }

  void random(std::span<const Output> outputs, int64_t s, int64_t sample, const std::vector<void*>& to) {
    for (const Output& out : outputs) {
      const uint64_t key = sample_key(use_) + (out.is_target() ? 1 : 0);  // a pipeline stage may need only one of them
      if (!out.positions) {
        normals(out, key, s, sample, to[out.at]);
        continue;
      }
      for (int64_t i = 0, n = out.per_sample; i < n; ++i)
        static_cast<int32_t*>(to[out.at])[s * n + i] =
            random_id(out, key, static_cast<uint64_t>(sample * out.positions->whole() + out.positions->of(i)));
    }
  }

  // The step table's seed is not used, because the executor writes the table while a thread here draws the next batch.
  uint64_t seed() const { return memory_.program->schedule.seed; }

  void normals(const Output& out, uint64_t key, int64_t s, int64_t sample, void* to) const {
    const int64_t n = out.per_sample;
    const auto draw = [&](int64_t from, int64_t count, float* numbers) {
      random_normals(seed(), key, static_cast<uint64_t>(sample * n + from), count, numbers);
    };
    if (out.dtype == Dtype::f32) return draw(0, n, static_cast<float*>(to) + s * n);
    float numbers[256];
    for (int64_t from = 0; from < n; from += std::ssize(numbers)) {
      const int64_t count = std::min(n - from, std::ssize(numbers));
      draw(from, count, numbers);
      for (int64_t i = 0; i < count; ++i)
        store_element(out.dtype, to, s * n + from + i, static_cast<double>(numbers[i]));
    }
  }

  int32_t random_id(const Output& out, uint64_t key, uint64_t place) const {
    if (out.ignored) return random_target(out, key, place);
    const auto id = [&](uint64_t of) { return philox::integer(seed(), of, place, 0, source_.vocab - 1); };
    if (source_.document_end >= 0 && out.is_target() && id(sample_key(use_)) == source_.document_end)
      return kIgnoredTarget;
    return static_cast<int32_t>(id(key));
  }

  // Returns a random target where some do not count: a quarter of them, so that ranks and microbatches count
  // differently, but never the first one of a batch.
  int32_t random_target(const Output& out, uint64_t key, uint64_t place) const {
    const auto draw = [&](uint64_t of, int64_t most) { return philox::integer(seed(), of, place, 0, most); };
    const int64_t id = draw(key, source_.vocab - 1);
    const bool first = place % static_cast<uint64_t>(source_.global_batch * out.positions->whole()) == 0;
    if (first) return static_cast<int32_t>(out.ignores(id) ? (id + 1) % source_.vocab : id);
    constexpr uint64_t kMasks = uint64_t{1} << 32;  // apart from the keys of samples
    return out.ignores(id) || draw(key + kMasks, 3) == 0 ? kIgnoredTarget : static_cast<int32_t>(id);
  }

  // Returns a sample's index among `random` windows, or in the epoch's order among `whole` windows that do not overlap.
  int64_t place(int64_t sample, int64_t random, int64_t whole) const {
    if (source_.order == "given") return sample % whole;
    return source_.order == "epochs" ? epoch_place(sample, whole, seed(), use_)
                                     : random_place(sample, random, seed(), use_);
  }

  // Reads a window of context + 1 tokens: inputs are all but the last, targets all but the first; this rank may have a
  // part of each. In epochs a window begins with the last token of the previous one. A token after the end of a
  // document is not a target.
  void tokens(std::span<const Output> outputs, int64_t s, int64_t sample, const std::vector<void*>& to) {
    const int64_t context = outputs[0].positions->whole(), width = element_width(tokens_->element());
    const int64_t window = place(sample, source_.count - context, (source_.count - 1) / context);
    const int64_t at = source_.first + window * (source_.order == "random" ? 1 : context);
    raw_.resize((context + 1) * width);
    tokens_->read(at, context + 1, raw_.data());
    for (const Output& out : outputs) {
      int32_t* data = static_cast<int32_t*>(to[out.at]) + s * out.per_sample;
      const int64_t shift = out.is_target() ? 1 : 0;
      with_elements(tokens_->element(), raw_.data(), [&](const auto* ids) {
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

  void rows(std::span<const Output> outputs, int64_t s, int64_t sample, const std::vector<void*>& to) {
    const int64_t row = source_.first + place(sample, source_.count, source_.count);
    for (const Output& out : outputs) {
      const int64_t n = out.per_sample;
      const double scale = out.is_target() ? 1 : source_.scale;
      raw_.resize(n * element_width(out.files->element()));
      out.files->read(row * n, n, raw_.data());
      with_elements(out.files->element(), raw_.data(), [&](const auto* numbers) {
        for (int64_t i = 0; i < n; ++i) {
          if (out.dtype == Dtype::i32)
            static_cast<int32_t*>(to[out.at])[s * n + i] =
                out.ignored ? label(out, static_cast<int64_t>(numbers[i]), row, i) : static_cast<int32_t>(numbers[i]);
          else
            store_element(out.dtype, to[out.at], s * n + i, static_cast<double>(numbers[i]) * scale);
        }
      });
    }
  }

  // Returns the target with value `id` at `position` of a row of an array.
  static int32_t label(const Output& out, int64_t id, int64_t row, int64_t position) {
    if (out.ignores(id)) return kIgnoredTarget;
    if (id >= 0 && id < out.classes) return static_cast<int32_t>(id);
    throw usage_error(fmt::format(
        "{}: the label {} of sample {} at position {} is neither in the {} logits of a row nor {}, which is ignored",
        out.files->place(row * out.per_sample).path, id, row, position, out.classes, *out.ignored));
  }

  [[noreturn]] void out_of_vocabulary(int64_t token, int64_t element) const {
    const DataFiles::Place found = tokens_->place(element);
    throw usage_error(fmt::format(
        "{}: token {} at position {} is not in the vocabulary of {}: make vocab larger or check that the file is "
        "what data says",
        found.path, token, found.element, source_.vocab));
  }

  RankMemory memory_;
  bool of_step_ = memory_.body == kStepBody;
  SampleUse use_ = of_step_ ? SampleUse::training : SampleUse::evaluation;
  DataSource source_;
  // Samples of this rank per step and per microbatch; index of its first sample in a microbatch; samples of all ranks
  // per microbatch.
  int64_t local_ = 0, micro_ = 0, first_ = 0, stride_ = 0;
  std::vector<Output> outputs_;
  std::list<Shares> shares_;  // after outputs_, because they point into it
  std::vector<void*> data_;   // memory of the outputs
  std::shared_ptr<DataFiles> tokens_;
  std::vector<std::byte> raw_;      // a sample in the file's element type
  std::optional<ReadAhead> ahead_;  // last, because its thread must end before the members that it uses
};

}  // namespace

std::unique_ptr<Kernel> make_next_batch(const RankMemory& memory, const Op& op) {
  return std::make_unique<NextBatch>(memory, op);
}

}  // namespace prun
