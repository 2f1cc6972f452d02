// The op attend on one core, for attend.py: 1,024 tokens in f32, 12 heads of 64, causal; beside the fused attention, a
// window, and documents that are packed into one stream or computed one by one.
//
// Documents one by one have the arithmetic of the packed stream alone, so the stream should take their time.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/one_op.h"

namespace prun {
namespace {

using test::OneOp;

constexpr int64_t kTokens = 1024, kHeads = 12, kHead = 64, kWidth = kHeads * kHead;
const std::vector<int64_t> kEven(8, 128), kUneven = {512, 256, 128, 64, 32, 32};

std::vector<double> numbers(int64_t count) { return test::random_values(count, static_cast<unsigned>(count % 1009)); }

// The log-sum-exp is not that of the inputs; it is high enough that probabilities are below 1.
void add_backward_reads(OneOp& op, int64_t tokens) {
  for (int i = 0; i < 2; ++i) op.read(Dtype::f32, {1, tokens, kWidth}, numbers(tokens * kWidth));
  op.read(Dtype::f32, {1, kHeads, tokens}, std::vector<double>(static_cast<size_t>(kHeads * tokens), 12.0));
}

std::unique_ptr<OneOp> fused(bool backward) {
  auto op = std::make_unique<OneOp>(backward ? "attention_grad" : "attention");
  op->attr("heads", kHeads).attr("causal", 1).read(Dtype::f32, {1, kTokens, 3 * kWidth}, numbers(3 * kTokens * kWidth));
  if (backward) {
    add_backward_reads(*op, kTokens);
    op->write(Dtype::f32, {1, kTokens, 3 * kWidth});
  } else {
    op->write(Dtype::f32, {1, kTokens, kWidth}).write(Dtype::f32, {1, kHeads, kTokens});
  }
  return op;
}

// `documents`: lengths of a stream's documents, or none. `window` 0: none.
std::unique_ptr<OneOp> attend(bool backward, int64_t tokens, int64_t window, const std::vector<int64_t>& documents) {
  auto op = std::make_unique<OneOp>(backward ? "attend_grad" : "attend");
  op->attr("heads", kHeads).attr("causal", 1);
  if (window > 0) op->attr("window", window);
  for (int i = 0; i < 3; ++i) op->read(Dtype::f32, {1, tokens, kWidth}, numbers(tokens * kWidth));
  if (backward) add_backward_reads(*op, tokens);
  if (!documents.empty()) {
    std::vector<double> spans;
    int64_t begin = 0;
    for (const int64_t length : documents) {
      for (int64_t t = 0; t < length; ++t)
        spans.insert(spans.end(), {static_cast<double>(begin), static_cast<double>(begin + length)});
      begin += length;
    }
    op->attr("spans", 1).read(Dtype::i32, {1, tokens, 2}, spans);
  }
  if (backward) {
    for (int i = 0; i < 3; ++i) op->write(Dtype::f32, {1, tokens, kWidth});
  } else {
    op->write(Dtype::f32, {1, tokens, kWidth}).write(Dtype::f32, {1, kHeads, tokens});
  }
  return op;
}

void run(benchmark::State& state, const std::vector<std::unique_ptr<OneOp>>& ops) {
  const std::unique_ptr<Device> device = open_device("cpu");
  std::vector<Kernel*> kernels;
  kernels.reserve(ops.size());
  for (const auto& op : ops) kernels.push_back(&op->prepare(*device));
  for (auto _ : state)
    for (Kernel* kernel : kernels) kernel->run();
}
void run_one(benchmark::State& state, std::unique_ptr<OneOp> op) {
  std::vector<std::unique_ptr<OneOp>> ops;
  ops.push_back(std::move(op));
  run(state, ops);
}

void one_by_one(benchmark::State& state, bool backward, const std::vector<int64_t>& documents) {
  std::vector<std::unique_ptr<OneOp>> ops;
  ops.reserve(documents.size());
  for (const int64_t length : documents) ops.push_back(attend(backward, length, 0, {}));
  run(state, ops);
}

void add_all() {
  for (const bool backward : {false, true}) {
    const auto add = [&](const char* name, auto body) {
      benchmark::RegisterBenchmark((std::string(name) + (backward ? "/backward" : "/forward")).c_str(), body)
          ->Unit(benchmark::kMicrosecond);
    };
    add("fused", [backward](benchmark::State& s) { run_one(s, fused(backward)); });
    add("causal", [backward](benchmark::State& s) { run_one(s, attend(backward, kTokens, 0, {})); });
    add("window 128", [backward](benchmark::State& s) { run_one(s, attend(backward, kTokens, 128, {})); });
    add("packed even", [backward](benchmark::State& s) { run_one(s, attend(backward, kTokens, 0, kEven)); });
    add("apart even", [backward](benchmark::State& s) { one_by_one(s, backward, kEven); });
    add("packed uneven", [backward](benchmark::State& s) { run_one(s, attend(backward, kTokens, 0, kUneven)); });
    add("apart uneven", [backward](benchmark::State& s) { one_by_one(s, backward, kUneven); });
  }
}

}  // namespace
}  // namespace prun

int main(int count, char** words) {
  benchmark::Initialize(&count, words);
  if (benchmark::ReportUnrecognizedArguments(count, words)) return 1;
  prun::add_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
