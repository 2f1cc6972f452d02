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
#include <utility>

#include "data/packed_documents.h"
#include "exec/batch/document_layout.h"
#include "exec/batch/sample_source.h"
#include "exec/count_targets.h"
#include "exec/host_ops.h"
#include "exec/read_ahead.h"
#include "ir/batch_inputs.h"

namespace prun {
namespace {

class NextBatch final : public Kernel {
 public:
  NextBatch(const RankMemory& memory, const Op& op, const HostServices& services)
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
    // The step table's seed is not used, because the executor writes the table while a thread draws the next batch.
    const Schedule& schedule = memory.program->schedule;
    samples_ = make_sample_source({source_, of_step_ ? SampleUse::training : SampleUse::evaluation, schedule.seed,
                                   schedule.begin.samples, memory.rank, services.cancelled, services.cursors});
    const std::vector<std::string> names = names_between_commas(op.attrs.text("names"));
    std::vector<int64_t> bytes;
    for (size_t i = 0; i < op.writes.size(); ++i) {
      const Tensor& tensor = memory.program->tensors[op.writes[i]];
      bytes.push_back(tensor.bytes());
      data_.push_back(memory.data(op.writes[i]));
      if (is_share(op.attrs, i)) continue;
      if (names.at(i) == kOrder) {
        orders_.push_back(i);
        stream_ = tensor.shape.at(1);
        continue;
      }
      BatchOutput out{names.at(i), tensor.dtype, tensor.count() / local_, i};
      if (!op.attrs.text("tokens_axis").empty() && !reads_whole(op.attrs, i)) {
        out.per_token = out.per_sample / tensor.shape.at(1);
        out.positions.emplace(memory, op.attrs, tensor.shape[1]);
        stream_ = out.positions->whole();
      } else if (tensor.dtype == Dtype::i32) {
        out.positions.emplace(memory, Attrs(), out.per_sample);
      }
      if (op.attrs.has("classes") && op.attrs.integers("classes").at(i) > 0) {
        out.ignored = op.attrs.integers("ignored").at(i);  // other ranks write the shares of these targets
        out.classes = op.attrs.integers("classes").at(i);
      }
      samples_->add(out);
      outputs_.push_back(std::move(out));
    }
    if (const std::string axis = op.attrs.text("tokens_axis"); !axis.empty()) {
      token_ranks_ = share_along(memory, axis);
      by_cost_ = op.attrs.text("token_shares") == "documents";
    }
    for (size_t i = 0; i < op.writes.size(); ++i)
      if (is_share(op.attrs, i)) add_share(op.attrs, i, memory.program->tensors[op.writes[i]].dtype);
    if (samples_->reads_ahead())
      ahead_.emplace(std::move(bytes), [this](int64_t batch, const std::vector<void*>& to) { fill(batch, to); });
  }
  ~NextBatch() override { samples_->stop(); }
  NextBatch(const NextBatch&) = delete;
  NextBatch& operator=(const NextBatch&) = delete;

  void run() override {
    const int64_t batch = of_step_ ? memory_.table->step : memory_.table->eval_batch;
    samples_->await(true);
    if (ahead_)
      ahead_->take(batch, data_);
    else
      fill(batch, data_);
    samples_->await(false);
  }

 private:
  // A tensor of shares, and the whole samples that it is computed from.
  struct Shares {
    BatchOutput* targets;
    Dtype dtype;
    size_t at;
    BatchOutput all_targets, all_weights;
    std::optional<TargetCount> count;
    std::optional<double> of_evaluation;  // share of a target of weight 1 in all batches of an evaluation
  };

  static bool reads_whole(const Attrs& attrs, size_t output) {
    return attrs.has("whole") && attrs.integers("whole").at(output) != 0;
  }

  static bool is_share(const Attrs& attrs, size_t output) {
    return attrs.has("share_of") && !names_between_commas(attrs.text("share_of")).at(output).empty();
  }

  void add_share(const Attrs& attrs, size_t at, Dtype dtype) {
    const std::string of = names_between_commas(attrs.text("share_of")).at(at),
                      by = names_between_commas(attrs.text("weighted_by")).at(at);
    const auto targets =
        std::find_if(outputs_.begin(), outputs_.end(), [&](const BatchOutput& o) { return o.name == of; });
    PRUN_CHECK(targets != outputs_.end() && targets->positions, fmt::format("no targets '{}' to count", of));
    targets->ignored = attrs.integers("ignored").at(at);
    targets->classes = attrs.integers("classes").at(at);
    const int64_t whole = targets->whole();
    BatchOutput all{of, Dtype::i32, whole, 0}, weights{by.empty() ? of : by, Dtype::f64, whole, 0};
    all.positions.emplace(memory_, Attrs(), whole);
    all.ignored = targets->ignored, all.classes = targets->classes;
    samples_->add(all);
    samples_->add(weights);
    const std::string path = samples_->path(*targets);
    Shares& shares = shares_.emplace_back(Shares{&*targets, dtype, at, std::move(all), std::move(weights), {}, {}});
    SampleReaders readers;
    readers.ids = [this, &shares](const std::string&, int64_t sample, std::vector<int32_t>& ids) {
      ids.resize(shares.all_targets.per_sample);
      samples_->fill({&shares.all_targets, 1}, 0, sample, {ids.data()});
    };
    readers.weights = [this, &shares](const std::string&, int64_t sample, std::vector<double>& out) {
      samples_->fill({&shares.all_weights, 1}, 0, sample, {out.data()});
      if (source_.kind == "random")
        for (double& weight : out) weight = std::abs(weight);
    };
    readers.count = [this, &shares](int64_t sample) { return samples_->counted_targets(shares.all_targets, sample); };
    shares.count.emplace(std::move(readers), of, by, whole, path);
  }

  void fill(int64_t batch, const std::vector<void*>& to) {
    samples_->begin_batch(sample_at(batch, 0));
    if (samples_->balances()) balance(batch);
    tokens_.resize(by_cost_ || !orders_.empty() ? local_ : 0);
    for (int64_t s = 0; s < local_; ++s) {
      const int64_t sample = local_sample(batch, s);
      if (!tokens_.empty()) divide_tokens(sample, s, to);
      samples_->fill(outputs_, s, sample, to);
    }
    for (Shares& shares : shares_) write(shares, batch, to);
    samples_->end_batch();
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
    const BatchOutput& targets = *shares.targets;
    const int32_t* ids = static_cast<const int32_t*>(to[targets.at]);
    for (int64_t s = 0, n = targets.per_sample; s < local_; ++s) {
      use_tokens(s);
      shares.count->write(
          local_sample(batch, s), ids + s * n, n, [&](int64_t i) { return targets.element(i); }, share, shares.dtype,
          to[shares.at], s * n);
    }
  }

  // Finds the tokens of each rank in the rank's s-th sample, and writes their order.
  void divide_tokens(int64_t sample, int64_t s, const std::vector<void*>& to) {
    tokens_[s] = by_cost_ ? samples_->shares(sample, token_ranks_.of) : both_ends(stream_, token_ranks_.of);
    for (const size_t at : orders_)
      for (int64_t i = 0; i < stream_; ++i)
        static_cast<int32_t*>(to[at])[s * stream_ + tokens_[s][i]] = static_cast<int32_t>(i);
    use_tokens(s);
  }

  // Selects the rank's tokens of its s-th sample in all outputs that are split.
  void use_tokens(int64_t s) {
    if (!by_cost_) return;
    const int64_t held = stream_ / token_ranks_.of;
    for (BatchOutput& out : outputs_)
      if (out.per_sample == held * out.per_token)
        out.tokens = std::span<const int64_t>(tokens_[s]).subspan(token_ranks_.index * held, held);
  }

  // Returns the tokens of all ranks, of which each has a chunk from each end.
  static std::vector<int64_t> both_ends(int64_t tokens, int64_t ranks) {
    std::vector<int64_t> all;
    all.reserve(tokens);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto positions = sdk::token_positions("a", 2, tokens / ranks, [&](const std::string& axis) {
        return axis.empty() ? Share{} : Share{rank, ranks};
      });
      for (int64_t i = 0; i < tokens / ranks; ++i) all.push_back(positions.of(i));
    }
    return all;
  }

  // Orders the batch so that ranks and microbatches get samples of nearly equal cost.
  void balance(int64_t batch) {
    std::vector<double> costs(source_.global_batch);
    for (int64_t slot = 0; slot < source_.global_batch; ++slot) costs[slot] = samples_->cost(sample_at(batch, slot));
    order_ = balanced_order(costs);
  }

  // Returns the global index of the rank's s-th sample.
  int64_t local_sample(int64_t batch, int64_t s) const {
    const int64_t slot = s / micro_ * stride_ + first_ + s % micro_;
    return sample_at(batch, order_.empty() ? slot : order_[slot]);
  }

  // Returns the global index of a sample. `batch` is the step, or the index of a batch in the evaluation; `slot` is the
  // index in the batch.
  int64_t sample_at(int64_t batch, int64_t slot) const {
    const RunPosition& begin = memory_.program->schedule.begin;
    if (source_.whole > 0) return WholeSet{source_.whole, source_.global_batch}.sample(batch, slot);
    if (!of_step_) return batch * source_.global_batch + slot;
    return begin.left_out.sample_of(begin.samples + (batch - begin.step) * source_.global_batch + slot);
  }

  RankMemory memory_;
  bool of_step_ = memory_.body == kStepBody;
  DataSource source_;
  // Samples of this rank per step and per microbatch; index of its first sample in a microbatch; samples of all ranks
  // per microbatch.
  int64_t local_ = 0, micro_ = 0, first_ = 0, stride_ = 0;
  Share token_ranks_;                         // of context parallelism
  bool by_cost_ = false;                      // ranks divide tokens by the cost of their attention
  int64_t stream_ = 0;                        // tokens of a sample over all ranks, if they are divided
  std::vector<size_t> orders_;                // outputs that receive the order of the tokens
  std::vector<std::vector<int64_t>> tokens_;  // by sample of this rank: positions of all ranks' tokens
  std::vector<int64_t> order_;                // slot of each sample of the batch in it; empty = as they are
  std::unique_ptr<SampleSource> samples_;
  std::vector<BatchOutput> outputs_;
  std::list<Shares> shares_;        // after outputs_, because they point into it
  std::vector<void*> data_;         // memory of the outputs
  std::optional<ReadAhead> ahead_;  // last, because its thread must end before the members that it uses
};

}  // namespace

std::unique_ptr<Kernel> make_next_batch(const RankMemory& memory, const Op& op, const HostServices& services) {
  return std::make_unique<NextBatch>(memory, op, services);
}

}  // namespace prun
