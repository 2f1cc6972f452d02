// Kernels of the reference device: load to double, run the rule, store.
//
// Arrays are allocated when the kernel is made, so that a step allocates nothing, as on other devices.
#include "kernels/reference/reference_device.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "base/error.h"
#include "device/element.h"
#include "kernels/reference/rules.h"

namespace prun {
namespace reference {
namespace {

const std::map<std::string_view, Rule>& rules() {
  static const std::map<std::string_view, Rule> table = [] {
    std::map<std::string_view, Rule> all;
#define PRUN_ADD(name)                  \
  for (const Rule& rule : name##_rules) \
    PRUN_CHECK(all.emplace(rule.kind, rule).second, fmt::format("two rules for {}", rule.kind));
    PRUN_REFERENCE_FAMILIES(PRUN_ADD)
#undef PRUN_ADD
    return all;
  }();
  return table;
}

void load(Dtype dtype, const void* data, std::vector<double>& values) {
  with_element_type(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = number_of(static_cast<const T*>(data)[i]);
  });
}

// Conversion through f32 would round a double twice. If that could matter (the f32 is exactly between two bf16 numbers,
// the double is not), the f32 moves a step towards the double.
bf16 round_to_bf16(double value) {
  float f = static_cast<float>(value);
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0xffffu) == 0x8000u && static_cast<double>(f) != value)
    bits += std::abs(static_cast<double>(f)) < std::abs(value) ? 1u : ~0u;
  return to_bf16(std::bit_cast<float>(bits));
}

void store(Dtype dtype, const std::vector<double>& values, void* data) {
  with_element_type(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bf16>)
        static_cast<T*>(data)[i] = round_to_bf16(values[i]);
      else
        static_cast<T*>(data)[i] = static_cast<T>(values[i]);
    }
  });
}

class ReferenceKernel final : public Kernel {
 public:
  ReferenceKernel(const RankMemory& memory, const Op& op, Rule rule)
      : memory_(memory), op_(op), rule_(rule), call_{op_.attrs, arrays(op.reads), arrays(op.writes), memory_} {}

  void run() override {
    for (size_t i = 0; i < op_.reads.size(); ++i)
      load(tensor(op_.reads[i]).dtype, memory_.data(op_.reads[i]), call_.reads[i].v);
    for (Array& array : call_.writes) std::fill(array.v.begin(), array.v.end(), 0.0);
    rule_.run(call_);
    for (size_t i = 0; i < op_.writes.size(); ++i)
      store(tensor(op_.writes[i]).dtype, call_.writes[i].v, memory_.data(op_.writes[i]));
  }

 private:
  const Tensor& tensor(TensorId id) const { return memory_.program->tensors[id]; }
  std::vector<Array> arrays(const std::vector<TensorId>& ids) const {
    std::vector<Array> out;
    out.reserve(ids.size());
    for (TensorId id : ids)
      out.push_back({tensor(id).shape, tensor(id).dtype, std::vector<double>(tensor(id).count())});
    return out;
  }

  RankMemory memory_;
  Op op_;
  Rule rule_;
  Call call_;
};

class ReferenceDevice final : public Device {
 public:
  std::string_view name() const override { return "reference"; }
  int64_t workspace_bytes(const Program&, const Op&, int) const override { return 0; }

  std::unique_ptr<Kernel> make_kernel(const RankMemory& memory, const Op& op, int) const override {
    auto it = rules().find(op.def->name);
    PRUN_CHECK(it != rules().end(), fmt::format("no reference rule for {}", op.def->name));
    return std::make_unique<ReferenceKernel>(memory, op, it->second);
  }

  bool supports(const Op& op, const Program& program) const override {
    for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
      for (TensorId id : *ids)
        if (program.tensors[id].dtype == Dtype::f16) return false;
    return rules().count(op.def->name) != 0;
  }
};

}  // namespace

double rounded(Dtype dtype, double value) {
  if (dtype == Dtype::f32) return static_cast<float>(value);
  return dtype == Dtype::bf16 ? to_float(round_to_bf16(value)) : value;
}

void add_sums(Call& call) {
  const size_t first = call.reads.size() - call.writes.size();
  for (size_t w = 0; w < call.writes.size(); ++w) {
    Array& sum = call.writes[w];
    for (int64_t i = 0; i < sum.count(); ++i) sum[i] = rounded(sum.dtype, sum[i]) + call.reads[first + w][i];
  }
}

}  // namespace reference

std::unique_ptr<Device> make_reference_device() { return std::make_unique<reference::ReferenceDevice>(); }

}  // namespace prun
