// GEMMs run in waves of tiles over the multiprocessors; the fastest of five tile sizes counts. All other ops are
// memory-bound.
#include "simulate/op_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "ir/op_cost.h"
#include "ir/ops.h"

namespace prun::simulate {
namespace {

struct Tile {
  double m, n, quality;
};
constexpr Tile kTiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.92}, {64, 128, 0.8}, {64, 64, 0.6}};

// Backward's fraction of the peak relative to forward's: 63 and 73 % of an A100's peak (FlashAttention-2, arXiv
// 2307.08691, section 1).
constexpr double kFlashBackward = 63.0 / 73;
// Queries of a block of fused attention: blocks above the diagonal are skipped, those on it are computed whole
// (section 3.1 there). github.com/liangan1/GPU_travel, performance/flash-attn: causal, heads of 128, on an A100 143.7
// TFLOP/s for 1024 tokens and 156.3 for 4096; 161 / (1 + 128 / T) is 143.1 and 156.1.
constexpr double kFlashBlock = 128;

double bytes_of(const Program& program, const std::vector<TensorId>& ids) {
  double bytes = 0;
  for (const TensorId id : ids) bytes += static_cast<double>(program.tensors[id].bytes());
  return bytes;
}

// Returns (rows, last dim).
std::pair<double, double> matrix(const Tensor& tensor) {
  const double last = tensor.shape.empty() ? 1 : static_cast<double>(tensor.shape.back());
  return {static_cast<double>(tensor.count()) / last, last};
}

void add(OpTime& sum, const OpTime& more) {
  if (more.seconds > sum.seconds) sum.bound = more.bound;
  sum.seconds += more.seconds;
  sum.flops += more.flops;
}

// Returns the time of one of a linear layer's three GEMMs.
OpTime linear_time(const DeviceModel& device, const Program& program, const Op& op) {
  const auto read = [&](int i) -> const Tensor& { return program.tensors[op.reads[i]]; };
  const auto written = [&](int i) -> const Tensor& { return program.tensors[op.writes[i]]; };
  Product product;
  product.dtype = read(0).dtype;
  product.bytes = bytes_of(program, op.reads) + bytes_of(program, op.writes);
  const auto [rows, columns] = matrix(read(0));
  const bool dw = op.is(ops::linear_dw) || op.is(ops::linear_dw_add);
  const double bias_gradient = dw && op.writes.size() > 1 ? static_cast<double>(read(1).bytes()) : 0;
  if (dw) {
    product.m = columns, product.k = rows, product.n = matrix(read(1)).second;
  } else {
    product.m = rows, product.k = columns, product.n = matrix(written(0)).second;
  }
  OpTime time = product_time(device, product);
  if (device.fused && bias_gradient > 0) add(time, stream_time(device, bias_gradient));  // a separate reduction
  return time;
}

// Returns the time of [E,C,K]·[E,K,N] for E experts, of whose slots the share `routed` has tokens.
OpTime expert_time(const DeviceModel& device, const Program& program, const Op& op) {
  const Shape& first = program.tensors[op.reads[0]].shape;
  const Shape& result = program.tensors[op.writes[0]].shape;
  Product product;
  product.dtype = program.tensors[op.reads[0]].dtype;
  product.bytes = op_cost(program, op).bytes;
  product.batch = static_cast<double>(first[0]);
  const bool dw = op.is(ops::expert_linear_dw) || op.is(ops::expert_linear_dw_add);
  const double rows = std::ceil(static_cast<double>(first[1]) * op.attrs.number("routed", 1));
  product.m = dw ? static_cast<double>(first[2]) : rows;
  product.k = dw ? rows : static_cast<double>(first[2]);
  product.n = static_cast<double>(result[2]);
  return product_time(device, product);
}

// Returns the time of attention whose [T,T] scores per head are stored in memory: softmax and its dropout read and
// write them. `again`: backward first recomputes them from q and k.
OpTime unfused_attention(const DeviceModel& device, const Program& program, const Op& op, bool backward, bool again) {
  const Tensor& qkv = program.tensors[op.reads[0]];
  const double heads = static_cast<double>(op.attrs.integer("heads", 1));
  const double shared = static_cast<double>(op.attrs.integer("kv_heads", op.attrs.integer("heads", 1)));
  const double length = static_cast<double>(qkv.shape[1]), batch = static_cast<double>(qkv.shape[0]) * heads;
  const double size = matrix(qkv).second / (heads + 2 * shared);
  const double element = static_cast<double>(dtype_bytes(qkv.dtype));
  const double vectors = batch * length * size * element, scores = batch * length * length * element;
  const Product to_scores{batch, length, length, size, 2 * vectors + scores, qkv.dtype};
  const Product from_scores{batch, length, size, length, 2 * vectors + scores, qkv.dtype};
  OpTime time;
  const auto make_scores = [&] {
    add(time, product_time(device, to_scores));
    add(time, stream_time(device, 2 * scores));    // softmax
    add(time, stream_time(device, 2.5 * scores));  // dropout and its mask
  };
  if (!backward || again) make_scores();
  if (!backward) {
    add(time, product_time(device, from_scores));
    add(time, stream_time(device, 2 * vectors));  // concatenates the heads
    return time;
  }
  for (const Product& product : {from_scores, to_scores, from_scores, from_scores})
    add(time, product_time(device, product));
  add(time, stream_time(device, 2.5 * scores));
  add(time, stream_time(device, 3 * scores));
  add(time, stream_time(device, 6 * vectors));  // concatenates the gradients of q, k and v
  return time;
}

OpTime attention_time(const DeviceModel& device, const Program& program, const Op& op, const Cost& cost,
                      bool backward) {
  const Tensor& qkv = program.tensors[op.reads[0]];
  const std::string kernel = op.attrs.text("kernel", "flash");
  if ((kernel != "flash" || device.flash == 0) && (op.is(ops::attention) || op.is(ops::attention_grad)))
    return unfused_attention(device, program, op, backward, kernel == "recompute_scores");
  double rate = peak_of(device, qkv.dtype) * (device.flash > 0 ? device.flash : device.sustained), flops = cost.flops;
  const bool ideal = device.flash == 1;  // bound of any kernel
  if (backward && !ideal) rate *= kFlashBackward;
  const bool causal =
      op.attrs.integer("causal") != 0 && !op.is(ops::attention_block) && !op.is(ops::attention_block_grad);
  if (causal && device.flash > 0 && !ideal) flops *= 1 + kFlashBlock / static_cast<double>(qkv.shape[1]);
  const double seconds = flops / rate;
  return {seconds + device.launch_s, Bound::compute, cost.flops};
}

// Returns whether other frameworks fuse the op: gradient accumulation over microbatches, the layout change of a
// gathered tensor, and biases, which the next kernel adds with dropout and the residual.
bool is_fused(const Program& program, const Op& op) {
  if (op.is(ops::join_pieces) || op.is(ops::cut_pieces) || op.is(ops::bias)) return true;
  return op.is(ops::add) && op.phase == Phase::backward &&
         program.buffers[program.tensors[op.writes[0]].buffer].role == Role::grad;
}

// Counts all passes of a loss over the logits once per loss.
std::optional<OpTime> loss_time(const DeviceModel& device, const Program& program, const Op& op) {
  for (const OpDef* kind : {&ops::cross_entropy, &ops::cross_entropy_sums, &ops::cross_entropy_and_grad})
    if (op.is(*kind))
      return stream_time(device, device.loss_bytes * static_cast<double>(program.tensors[op.reads[0]].count()));
  for (const OpDef* kind : {&ops::cross_entropy_max, &ops::cross_entropy_finish, &ops::cross_entropy_grad})
    if (op.is(*kind)) return OpTime{};
  return std::nullopt;
}

bool copies_in_place(const Program& program, const Op& op) {
  return (op.is(ops::copy) || op.is(ops::reshape)) &&
         program.tensors[op.reads[0]].buffer == program.tensors[op.writes[0]].buffer &&
         program.tensors[op.reads[0]].byte_offset == program.tensors[op.writes[0]].byte_offset;
}

// Returns the op's rates as calibration measured them, or null. An accumulating op without a measurement takes the
// rates of the op that computes the gradient alone.
const OpRates* rates_of(const DeviceModel& device, const Program& program, const Op& op) {
  if (device.ops.empty()) return nullptr;
  const auto find = [&](const OpDef& kind) -> const OpRates* {
    const auto found = device.ops.find({std::string(kind.name), op_dtype(program, op)});
    return found == device.ops.end() ? nullptr : &found->second;
  };
  if (const OpRates* own = find(*op.def)) return own;
  for (const OpDef* alone : {&ops::linear_dw, &ops::bias_grad, &ops::expert_linear_dw})
    if (alone->accumulating == op.def) return find(*alone);
  return nullptr;
}

OpTime measured_time(const OpRates& rates, const Cost& cost) {
  const double flops = rates.rate.seconds(cost.flops, cost.bytes);
  const double bytes = rates.bandwidth.seconds(cost.bytes, cost.bytes);
  const Bound bound = rates.launch_s > flops + bytes ? Bound::launch : flops > bytes ? Bound::compute : Bound::memory;
  return {rates.launch_s + flops + bytes, bound, cost.model > 0 ? cost.flops : 0};
}

}  // namespace

OpTime product_time(const DeviceModel& device, const Product& p) {
  const double sms = device.multiprocessors;
  const double rate = peak_of(device, p.dtype) * device.sustained * p.k / (p.k + device.half_k);
  double compute = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = p.batch * std::ceil(p.m / tile.m) * std::ceil(p.n / tile.n);
    const double seconds = std::ceil(tiles / sms) * sms * 2 * tile.m * tile.n * p.k / (rate * tile.quality);
    if (compute == 0 || seconds < compute) compute = seconds;
  }
  const double memory = p.bytes / (device.memory_efficiency * device.memory_bandwidth);
  const double work = std::max(compute, memory);
  const Bound bound = work < device.launch_s ? Bound::launch : compute >= memory ? Bound::compute : Bound::memory;
  return {work + device.launch_s, bound, 2 * p.batch * p.m * p.n * p.k};
}

OpTime stream_time(const DeviceModel& device, double bytes) {
  const double seconds = bytes / (device.memory_efficiency * device.memory_bandwidth);
  return {seconds + device.launch_s, seconds < device.launch_s ? Bound::launch : Bound::memory, 0};
}

double full_bytes(const Program& program, const Op& op) {
  if (op.reads.empty()) return 0;
  const double in = static_cast<double>(program.tensors[op.reads[0]].bytes());
  const CollTraits& traits = op.def->collective();
  return traits.whole_output && !traits.whole_input ? in * program.mesh.size(op.axis) : in;
}

Dtype op_dtype(const Program& program, const Op& op) {
  for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
    for (const TensorId id : *ids)
      if (computes(program.tensors[id].dtype)) return program.tensors[id].dtype;
  return Dtype::f32;
}

OpTime op_time(const DeviceModel& device, const Program& program, const Op& op) {
  if (op.def->op_class == OpClass::host) return {};
  if (copies_in_place(program, op)) return {};
  if (op.attrs.integer("round") > 0) return {device.launch_s, Bound::launch, 0};  // expected to have no token
  if (const OpRates* rates = rates_of(device, program, op)) return measured_time(*rates, op_cost(program, op));
  for (const OpDef* kind :
       {&ops::linear, &ops::linear_dx, &ops::linear_dw, &ops::linear_dw_add, &ops::linear_gelu, &ops::linear_dx_gelu})
    if (op.is(*kind)) return linear_time(device, program, op);
  for (const OpDef* kind :
       {&ops::expert_linear, &ops::expert_linear_dx, &ops::expert_linear_dw, &ops::expert_linear_dw_add})
    if (op.is(*kind)) return expert_time(device, program, op);
  const Cost cost = op_cost(program, op);
  const bool forward = op.is(ops::attention) || op.is(ops::attend) || op.is(ops::attention_block);
  const bool backward = op.is(ops::attention_grad) || op.is(ops::attend_grad) || op.is(ops::attention_block_grad);
  if (forward || backward) return attention_time(device, program, op, cost, backward);
  if (op.def->optimizer != nullptr && !op.def->optimizer->factored) {
    const double parameters = static_cast<double>(program.tensors[op.reads[1]].count());
    const double copy = op.def->optimizer->casts ? 6 * parameters : 0;
    OpTime time{(device.optimizer_bytes * parameters + copy) / device.memory_bandwidth + device.launch_s, Bound::memory,
                0};
    return time;
  }
  if (device.fused && is_fused(program, op)) return {};
  if (device.fused && op.is(ops::dropout))
    return stream_time(device, static_cast<double>(program.tensors[op.writes[0]].count()));  // its mask
  if (device.loss_bytes > 0)
    if (const std::optional<OpTime> time = loss_time(device, program, op)) return *time;
  return stream_time(device, cost.bytes);
}

}  // namespace prun::simulate
