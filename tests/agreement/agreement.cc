#include "tests/agreement/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "kernels/devices.h"
#include "tests/unit/op_list.h"

namespace prun {
namespace {

std::vector<double> random_values(std::mt19937_64& random, const Slot& slot) {
  std::vector<double> values(static_cast<size_t>(element_count(slot.shape)));
  std::uniform_real_distribution<double> real(slot.low, slot.high);
  for (double& value : values) {
    value = real(random);
    if (slot.dtype == Dtype::i32 || slot.dtype == Dtype::i64) value = std::floor(std::abs(value));
  }
  return values;
}

// In an f64 plan, types that are otherwise always f32 are f64 too, except the result of a cast.
Dtype type_of(const Case& c, const Slot& slot, Dtype dtype) {
  const Dtype type = slot.dtype.value_or(dtype);
  return dtype == Dtype::f64 && type == Dtype::f32 && c.op.kind != std::string_view("cast") ? Dtype::f64 : type;
}

void add_slots(OpList& list, const Case& c, Dtype dtype) {
  for (const Slot& slot : c.slots) list.tensor({type_of(c, slot, dtype), slot.shape});
}

struct Tolerance {
  double relative;   // relative to the value plus the tensor's root mean square
  double least = 0;  // lower bound of that magnitude, for cancelling sums of rounded terms
};

Tolerance tolerance_of(const Case& c, int slot, Dtype dtype, const AgreementOptions& options) {
  // dq of attend is a tensor of its own, whose terms cancel where queries see few keys; attention's is one with dk and
  // dv, which raise the root mean square.
  const double least = options.rounds_heads ? 0.25 : c.op.kind == std::string_view("attend_grad") ? 0.2 : 0.05;
  if (dtype == Dtype::bf16 && options.tensor_cores) return {1.0 / 64, least};
  switch (type_of(c, c.slots[static_cast<size_t>(slot)], dtype)) {
    case Dtype::bf16:
      return {1.0 / 128};
    case Dtype::f64:
      return {1e-6 * c.tolerance};
    default:
      return {c.tolerance};
  }
}

// Checks that a fused op equals, bitwise, its parts run one by one on the same device.
void expect_bits_of_parts(const Case& c, const Device& device, Dtype dtype, const AgreementOptions& options,
                          const OpList& before, const OpList& fused) {
  OpList parts(device, options.threads, options.skew);
  add_slots(parts, c, dtype);
  for (const OpLine& op : c.apart) {
    ASSERT_TRUE(parts.supports(op.kind, op.reads, op.writes, op.attrs)) << "without " << op.kind;
    parts.op(op.kind, op.reads, op.writes, op.attrs);
  }
  parts.make();
  for (TensorId id : c.op.reads) parts.set(id, before.get(id));
  parts.run();
  for (TensorId id : c.op.writes) ASSERT_EQ(fused.get(id), parts.get(id)) << "tensor " << id.index();
}

void expect_near(const std::vector<double>& found, const std::vector<double>& wanted, Tolerance tolerance, int slot) {
  double square = 0;
  for (double value : wanted) square += value * value;
  double rms = std::sqrt(square / static_cast<double>(std::max<size_t>(1, wanted.size())));
  rms = std::max(rms, tolerance.least);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double most = tolerance.relative * (std::abs(wanted[i]) + rms);
    if (found[i] == wanted[i] || std::abs(found[i] - wanted[i]) <= most) continue;  // equality covers infinities
    FAIL() << "tensor " << slot << " element " << i << " is " << found[i] << ", not " << wanted[i] << " (" << most
           << " more or less)";
  }
}

// Replaces the slots of experts that the op left as they were by zeros, where the reference has these. All slots of an
// expert remain, or none.
void clear_left(std::vector<double>& found, const std::vector<double>& before, const std::vector<double>& wanted,
                int64_t experts) {
  const auto of_expert = static_cast<std::ptrdiff_t>(found.size()) / experts;
  for (int64_t e = 0; e < experts; ++e) {
    const auto begin = found.begin() + e * of_expert;
    const auto first = wanted.begin() + e * of_expert;
    if (std::equal(begin, begin + of_expert, before.begin() + e * of_expert) &&
        std::all_of(first, first + of_expert, [](double value) { return value == 0; }))
      std::fill(begin, begin + of_expert, 0.0);
  }
}

// Fills an op's results, unless it reads them, so that an element that the op does not write is seen.
void fill_results(OpList& list, const OpLine& op) {
  for (const TensorId id : op.writes)
    if (std::ranges::find(op.reads, id) == op.reads.end()) list.set(id, std::vector<double>(list.get(id).size(), 77));
}

}  // namespace

bool on_tensor_cores(std::string_view kind) {
  return kind.starts_with("attention") || kind.starts_with("attend") || kind == "cached_attention";
}

bool may_round_heads(std::string_view kind) { return kind == "attention_block_grad"; }

bool has_bits_of_the_cpu(std::string_view kind) {
  static const std::set<std::string_view> kinds = {"init_params", "random_int",     "dropout",       "embedding",
                                                   "positions",   "positions_grad", "embedding_grad"};
  return kinds.contains(kind);
}

bool supported(const Case& c, const Device& device, Dtype dtype) {
  OpList list(device);
  add_slots(list, c, dtype);
  return list.supports(c.op.kind, c.op.reads, c.op.writes, c.op.attrs);
}

void expect_agreement(const Case& c, const Device& device, Dtype dtype, const AgreementOptions& options) {
  SCOPED_TRACE(std::string(c.name) + " in " + std::string(dtype_name(dtype)) + " on " + std::string(device.name()) +
               ", " + std::to_string(options.threads) + " threads, skew " + std::to_string(options.skew));
  std::unique_ptr<Device> reference = open_device("reference");
  const bool exact = options.exactly_as != nullptr;
  OpList before(*reference), slow(exact ? *options.exactly_as : *reference),
      fast(device, options.threads, options.skew);
  for (OpList* list : {&before, &slow, &fast}) add_slots(*list, c, dtype);
  for (const OpLine& op : c.before) before.op(op.kind, op.reads, op.writes, op.attrs);
  slow.op(c.op.kind, c.op.reads, c.op.writes, c.op.attrs);
  fast.op(c.op.kind, c.op.reads, c.op.writes, c.op.attrs);
  for (OpList* list : {&before, &slow, &fast}) list->make();
  std::mt19937_64 random(5);
  for (size_t i = 0; i < c.slots.size(); ++i) before.set(static_cast<int>(i), random_values(random, c.slots[i]));
  before.run();
  for (TensorId id : c.op.reads)
    for (OpList* list : {&slow, &fast}) list->set(id, before.get(id));
  fill_results(slow, c.op);
  slow.run();
  for (int run = 0; run < options.runs; ++run) {
    if (run > 0)
      for (TensorId id : c.op.reads) fast.set(id, before.get(id));
    fill_results(fast, c.op);
    const std::vector<double> at_first = c.leaves ? fast.get(c.op.writes[0]) : std::vector<double>();
    fast.run();
    ASSERT_EQ(fast.written_beside(), "");
    for (TensorId id : c.op.writes) {
      const Tolerance tolerance = exact ? Tolerance{0} : tolerance_of(c, id.index(), dtype, options);
      std::vector<double> found = fast.get(id);
      if (c.leaves && id == c.op.writes[0])
        clear_left(found, at_first, slow.get(id), c.slots[static_cast<size_t>(id.index())].shape[0]);
      expect_near(found, slow.get(id), tolerance, id.index());
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  if (!c.apart.empty()) expect_bits_of_parts(c, device, dtype, options, before, fast);
}

}  // namespace prun
