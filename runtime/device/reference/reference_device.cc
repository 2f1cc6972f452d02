// Kernels of the reference device: load to double, run the rule, store.
//
// Arrays are allocated when the kernel is made, so that a step allocates nothing here either.
#include "device/reference/reference_device.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "base/error.h"
#include "device/bf16.h"
#include "device/reference/rules.h"

namespace prun {
namespace reference {
namespace {

const std::map<std::string_view, Rule>& rules() {
  static const std::map<std::string_view, Rule> table = [] {
    std::map<std::string_view, Rule> all;
    for (std::span<const Rule> family :
         {matrix_rules(), attention_rules(), row_rules(), pointwise_rules(), piece_rules(), source_rules(),
          training_rules(), moe_rules(), attention_block_rules()})
      for (const Rule& rule : family)
        PRUN_CHECK(all.emplace(rule.kind, rule).second, fmt::format("two rules for {}", rule.kind));
    return all;
  }();
  return table;
}

template <class T>
void load(const void* data, std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(static_cast<const T*>(data)[i]);
}
template <class T>
void store(const std::vector<double>& values, void* data) {
  for (size_t i = 0; i < values.size(); ++i) static_cast<T*>(data)[i] = static_cast<T>(values[i]);
}

void load(Dtype dtype, const void* data, std::vector<double>& values) {
  switch (dtype) {
    case Dtype::f64:
      return load<double>(data, values);
    case Dtype::f32:
      return load<float>(data, values);
    case Dtype::i64:
      return load<int64_t>(data, values);
    case Dtype::i32:
      return load<int32_t>(data, values);
    case Dtype::i8:
      return load<int8_t>(data, values);
    case Dtype::u8:
      return load<uint8_t>(data, values);
    case Dtype::bf16:
      for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(static_cast<const bf16*>(data)[i]);
      return;
    case Dtype::f16:
      PRUN_CHECK(false, "f16");
  }
}

// Through f32 a double would be rounded twice on its way to bf16; when that could matter (the f32 lies exactly between
// two bf16 numbers, the double does not) the f32 is moved a step towards the double.
bf16 round_to_bf16(double value) {
  float f = static_cast<float>(value);
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0xffffu) == 0x8000u && static_cast<double>(f) != value)
    bits += std::abs(static_cast<double>(f)) < std::abs(value) ? 1u : ~0u;
  return to_bf16(std::bit_cast<float>(bits));
}

void store(Dtype dtype, const std::vector<double>& values, void* data) {
  switch (dtype) {
    case Dtype::f64:
      return store<double>(values, data);
    case Dtype::f32:
      return store<float>(values, data);
    case Dtype::i64:
      return store<int64_t>(values, data);
    case Dtype::i32:
      return store<int32_t>(values, data);
    case Dtype::i8:
      return store<int8_t>(values, data);
    case Dtype::u8:
      return store<uint8_t>(values, data);
    case Dtype::bf16:
      for (size_t i = 0; i < values.size(); ++i) static_cast<bf16*>(data)[i] = round_to_bf16(values[i]);
      return;
    case Dtype::f16:
      PRUN_CHECK(false, "f16");
  }
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
  const Tensor& tensor(int id) const { return memory_.program->tensors[id]; }
  std::vector<Array> arrays(const std::vector<TensorId>& ids) const {
    std::vector<Array> out;
    for (int id : ids)
      out.push_back({tensor(id).shape, tensor(id).dtype, std::vector<double>(static_cast<size_t>(tensor(id).count()))});
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
      for (int id : *ids)
        if (program.tensors[id].dtype == Dtype::f16) return false;
    return rules().count(op.def->name) != 0;
  }
};

}  // namespace

double rounded(Dtype dtype, double value) {
  if (dtype == Dtype::f32) return static_cast<float>(value);
  return dtype == Dtype::bf16 ? to_float(round_to_bf16(value)) : value;
}

}  // namespace reference

std::unique_ptr<Device> make_reference_device() { return std::make_unique<reference::ReferenceDevice>(); }

}  // namespace prun
