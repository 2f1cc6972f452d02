#include "exec/generation_ops.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "device/element.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Supplies the step's token; in the body before the first step, a chunk of the prompt, numbered by the step table's
// eval_batch.
class FeedTokens final : public Kernel {
 public:
  FeedTokens(const RankMemory& memory, const Op& op, std::shared_ptr<GenerationServices> services)
      : memory_(memory),
        services_(std::move(services)),
        tokens_(static_cast<int32_t*>(memory.data(op.writes[0]))),
        positions_(op.writes.size() > 1 ? static_cast<int32_t*>(memory.data(op.writes[1])) : nullptr),
        count_(memory.program->tensors[op.writes[0]].count()) {}

  void run() override {
    if (memory_.body == kStepBody) return put(0, services_->last(), services_->position());
    const std::vector<int32_t>& prompt = services_->prompt();
    const int64_t before = std::ssize(prompt) - 1;  // the last token is the first step's input
    const int64_t first = std::max<int64_t>(0, std::min(memory_.table->eval_batch * count_, before - count_));
    for (int64_t i = 0; i < count_; ++i) put(i, first + i < before ? prompt[first + i] : 0, first + i);
  }

 private:
  void put(int64_t i, int32_t token, int64_t position) {
    tokens_[i] = token;
    if (positions_ != nullptr) positions_[i] = static_cast<int32_t>(position);
  }

  RankMemory memory_;
  std::shared_ptr<GenerationServices> services_;
  int32_t *tokens_, *positions_;
  int64_t count_;
};

class SampleToken final : public Kernel {
 public:
  SampleToken(const RankMemory& memory, const Op& op, std::shared_ptr<GenerationServices> services)
      : tensor_(memory.program->tensors[op.reads[0]]),
        data_(memory.data(op.reads[0])),
        services_(std::move(services)),
        logits_(op.attrs.integer("vocab", tensor_.shape.back())) {}

  void run() override {
    const int64_t last = tensor_.count() - tensor_.shape.back();
    for (int64_t i = 0; i < std::ssize(logits_); ++i) logits_[i] = load_element(tensor_.dtype, data_, last + i);
    services_->take(logits_);
  }

 private:
  const Tensor& tensor_;
  const void* data_;
  std::shared_ptr<GenerationServices> services_;
  std::vector<double> logits_;
};

}  // namespace

GenerationServices::GenerationServices(GenerationOptions options, int rank,
                                       std::function<void(const std::string&)> print)
    : options_(std::move(options)),
      rank_(rank),
      print_(std::move(print)),
      last_(options_.prompt.back()),
      position_(std::ssize(options_.prompt) - 1) {}

void GenerationServices::take(std::span<const double> logits) {
  if (ended_) return;
  const Choice choice = choose(logits, options_.sampling, made_);
  last_ = static_cast<int32_t>(choice.token);
  ++position_;
  ++made_;
  ended_ = std::ranges::find(options_.ends, last_) != options_.ends.end();
  if (rank_ == 0) print_(fmt::format("{} {}", choice.token, choice.log_probability));
}

std::unique_ptr<Kernel> make_generation_kernel(const RankMemory& memory, const Op& op,
                                               const std::shared_ptr<GenerationServices>& services) {
  if (!op.is(ops::feed_tokens) && !op.is(ops::sample_token)) return nullptr;
  PRUN_CHECK(services != nullptr, std::string(op.def->name) + " without a prompt");
  if (op.is(ops::feed_tokens)) return std::make_unique<FeedTokens>(memory, op, services);
  return std::make_unique<SampleToken>(memory, op, services);
}

}  // namespace prun
