// Ops of mixtures of experts in bf16: GEMMs that skip slots against cuBLASLt's over all slots, whose ratio decides
// when plugins/cuda/gemm/linear.cc skips; ops that move rows against a copy of as many bytes; and ops of later rounds
// of dropless experts, which without a token should take no longer than their launches.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "tools/bench/cuda_bench.h"

namespace prun::bench {
namespace {

constexpr int kDtype = PRUN_BF16;

// Experts on one GPU. `slots` of an expert are 1.25 times its even share of the tokens' choices.
struct Layer {
  const char* model;
  int64_t experts, width, hidden, tokens, choices;
  int64_t share() const { return std::max<int64_t>(1, tokens * choices / experts); }
  int64_t slots() const { return (share() * 5 + 3) / 4; }
};

constexpr Layer kLayers[] = {{"8 experts", 8, 4096, 14336, 8192, 2},
                             {"64 experts", 64, 4096, 2048, 8192, 8},
                             {"256 experts", 256, 4096, 1024, 8192, 8}};

prun_attr number_attr(const char* name, double value) {
  return {name, PRUN_ATTR_NUMBER, 0, value, nullptr, nullptr, nullptr, 0};
}

class Experts {
 public:
  Experts(CudaBench& bench, const Layer& layer, const std::function<void(const Figure&)>& report)
      : bench_(bench), l_(layer), report_(report) {
    const int64_t e = l_.experts, s = l_.slots();
    x_ = bench.tensor({1, l_.tokens, l_.width}, kDtype), out_ = bench.tensor({1, l_.tokens, l_.width}, kDtype);
    rows_ = bench.tensor({e, s, l_.width}, kDtype), moved_ = bench.tensor({e, s, l_.width}, kDtype);
    gate_ = bench.tensor({e, s, l_.hidden}, kDtype), up_ = bench.tensor({e, s, l_.hidden}, kDtype);
    w_ = bench.tensor({e, l_.width, l_.hidden}, kDtype), dw_ = bench.tensor({e, l_.width, l_.hidden}, PRUN_F32);
    weights_ = bench.tensor({l_.tokens, l_.choices}, PRUN_F32);
    packed_ = moved_, packed_.dims = {1, e, s, l_.width};
    std::vector<int32_t> places;
    for (int64_t i = 0; i < l_.tokens * l_.choices; ++i)
      places.push_back(static_cast<int32_t>(i % e * l_.tokens + i / e));
    places_ = integers({l_.tokens, l_.choices}, places);
  }

  void measure() {
    gemms();
    moves();
    later_rounds();
  }

 private:
  BenchOperand integers(std::vector<int64_t> dims, const std::vector<int32_t>& values) {
    BenchOperand operand{bench_.bytes(values.size() * sizeof(int32_t)), std::move(dims), PRUN_I32};
    check(cudaMemcpy(operand.data, values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // such a copy may return early
    return operand;
  }
  BenchOperand filled(int64_t tokens) {
    return integers({l_.experts, 1}, std::vector<int32_t>(l_.experts, static_cast<int32_t>(tokens)));
  }

  void report(std::string what, double flops, const BenchOp& op, const std::function<void()>& yardstick,
              const char* best) {
    std::vector<std::function<void()>> runs = {bench_.op(op)};
    if (yardstick) runs.push_back(yardstick);
    const std::vector<double> times = bench_.times(runs);
    if (what.starts_with("expert_")) what.erase(0, std::string("expert_").size());
    report_({l_.model, what, flops, times[0], yardstick ? times[1] : 0, best, false});
  }

  BenchOp gemm(const char* kind, const BenchOperand& counts, double routed, int64_t round) {
    BenchOp op{kind, {rows_, w_, counts}, {up_}, {number_attr("routed", routed), integer_attr("round", round)}};
    if (std::string(kind) == "expert_linear_dx") op.reads[0] = up_, op.writes = {moved_};
    if (std::string(kind) == "expert_linear_dw") op.reads[1] = up_, op.writes = {dw_};
    if (std::string(kind) == "expert_linear_dw_add")
      op.reads = {rows_, up_, counts, dw_}, op.writes = {dw_};  // in place
    return op;
  }

  void gemms() {
    const int64_t slots = l_.slots(), few = std::max<int64_t>(1, slots / 40);
    const double of_row = 2.0 * static_cast<double>(l_.experts * l_.width * l_.hidden);
    for (const char* kind : {"expert_linear", "expert_linear_dx", "expert_linear_dw"}) {
      report(std::string(kind) + ", all slots", of_row * static_cast<double>(slots), gemm(kind, filled(slots), 0.1, 0),
             bench_.op(gemm(kind, filled(slots), 1, 0)), "cuBLASLt");
      report(std::string(kind) + ", 1 of 40 rows", of_row * static_cast<double>(few),
             gemm(kind, filled(slots + few), 0.1, 1), nullptr, "");
    }
  }

  void moves() {
    const int64_t slots = l_.slots(), e = l_.experts;
    const BenchOperand counts = filled(l_.share()), logits = bench_.tensor({1, l_.tokens, e}, kDtype);
    const BenchOperand chosen = bench_.tensor({l_.tokens, l_.choices}, PRUN_F32),
                       places = integers({l_.tokens, l_.choices}, std::vector<int32_t>(l_.tokens * l_.choices));
    const BenchOperand load = bench_.tensor({e}, PRUN_F32);
    report("route", 0, {"route", {logits}, {chosen, places, load, filled(0)}, {integer_attr("k", l_.choices)}}, nullptr,
           "");
    // A copy that reads and writes as many bytes together.
    const auto copy = [&](int64_t rows) {
      const size_t bytes =
          std::min(static_cast<size_t>(rows * l_.width), static_cast<size_t>(2 * e * slots * l_.width));
      return [this, bytes] {
        check(cudaMemcpyAsync(moved_.data, rows_.data, bytes, cudaMemcpyDeviceToDevice, bench_.stream()),
              "cudaMemcpyAsync");
      };
    };
    const int64_t all = e * slots, taken = l_.tokens * l_.choices;
    report("dispatch", 0, in_round("dispatch", 0), copy(all + l_.tokens), "copy");
    report("combine", 0, in_round("combine", 0), copy(taken + l_.tokens), "copy");
    report("combine_grad", 0, in_round("combine_grad", 0), copy(all + taken + l_.tokens), "copy");
    report("dispatch_grad", 0, in_round("dispatch_grad", 0), copy(taken + l_.tokens), "copy");
    report("pack_rows", 0, {"pack_rows", {rows_, counts}, {packed_}, {}}, copy(2 * taken), "copy");
    report("unpack_rows", 0, {"unpack_rows", {packed_, counts}, {rows_}, {}}, copy(all + taken), "copy");
  }

  // Round 0 has all tokens.
  BenchOp in_round(const std::string& kind, int64_t round) {
    const prun_attr at = integer_attr("round", round);
    if (kind == "dispatch") return {"dispatch", {x_, places_}, {rows_}, {at}};
    if (kind == "combine") return {"combine", {rows_, places_, weights_, out_}, {out_}, {at}};
    if (kind == "combine_grad")
      return {"combine_grad", {rows_, places_, weights_, x_, weights_}, {moved_, weights_}, {at}};
    return {"dispatch_grad", {places_, rows_, out_}, {out_}, {at}};
  }

  void later_rounds() {
    const BenchOperand none = filled(l_.slots());
    const std::vector<prun_attr> round = {integer_attr("round", 1)};
    std::vector<BenchOp> ops;
    for (const char* kind : {"dispatch", "combine", "combine_grad", "dispatch_grad"}) ops.push_back(in_round(kind, 1));
    for (const char* kind : {"expert_linear", "expert_linear_dx", "expert_linear_dw_add"})
      ops.push_back(gemm(kind, none, 0, 1));
    ops.push_back({"expert_activation", {gate_, up_, none}, {gate_}, round});
    ops.push_back({"expert_activation_grad", {gate_, up_, up_, none}, {gate_, up_}, round});
    ops.push_back({"pack_rows", {rows_, none}, {packed_}, round});
    ops.push_back({"unpack_rows", {packed_, none}, {rows_}, round});
    for (const BenchOp& op : ops) report(std::string(op.kind) + ", no token", 0, op, nullptr, "");
  }

  CudaBench& bench_;
  const Layer& l_;
  const std::function<void(const Figure&)>& report_;
  BenchOperand x_, out_, rows_, moved_, packed_, gate_, up_, w_, dw_, weights_, places_;
};

}  // namespace

void experts_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report) {
  for (Layer layer : kLayers) {
    if (std::string(layer.model).find(only) == std::string::npos) continue;
    if (bench.small) layer.experts = 8, layer.width = 64, layer.hidden = 32, layer.tokens = 64;
    measure_or_say(
        {layer.model, "experts", 0, 0, 0, ""}, [&] { Experts(bench, layer, report).measure(); }, report);
    bench.forget();
  }
}

}  // namespace prun::bench
