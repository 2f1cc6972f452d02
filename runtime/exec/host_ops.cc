#include "exec/host_ops.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "device/element.h"
#include "exec/prediction_file.h"
#include "ir/ops.h"
#include "kernels/cpu/ops/snapshot.h"

namespace prun {
namespace {

class Print final : public Kernel {
 public:
  Print(const RankMemory& memory, const Op& op, std::function<void(const std::string&)> print)
      : memory_(memory),
        op_(op),
        parts_(nlohmann::json::parse(op.attrs.text("parts", "[]"))),
        print_(std::move(print)) {}

  void run() override {
    std::string line;
    for (const nlohmann::json& part : parts_) {
      if (!line.empty()) line += ' ';
      if (part.is_null())
        line += std::to_string(memory_.rank);
      else if (part.is_string())
        line += part.get<std::string>();
      else if (part.is_array())
        line += tensor(part[0].get<size_t>(), elements(part[1].get<size_t>()));
      else
        line += tensor(part.get<size_t>(), -1);
    }
    print_(line);
  }

 private:
  int64_t elements(size_t read) const {
    const Tensor& counts = memory_.program->tensors[op_.reads[read]];
    const int64_t* data = static_cast<const int64_t*>(memory_.data(op_.reads[read]));
    int64_t sum = 0;
    for (int64_t i = 0; i < counts.count(); ++i) sum += data[i];
    return sum;
  }
  std::string tensor(size_t read, int64_t limit) const {
    return tensor_text(memory_.program->tensors[op_.reads[read]], memory_.data(op_.reads[read]), limit);
  }

  RankMemory memory_;
  const Op& op_;
  nlohmann::json parts_;
  std::function<void(const std::string&)> print_;
};

// Prints {"step":10,"report":{"block0":{"param_norm":1.5,"grad_norm":0.25}}}, from squared norms. Ranks that differ
// only along the op's axis have different units; of ranks with the same units, the first one reports.
class ReportNorms final : public Kernel {
 public:
  ReportNorms(const RankMemory& memory, const Op& op, std::function<void(const std::string&)> print)
      : memory_(memory),
        norms_(op.reads[0]),
        units_(nlohmann::json::parse(op.attrs.text("units"))),
        print_(std::move(print)) {
    const Mesh& mesh = memory.program->mesh;
    for (const Axis& axis : mesh.axes())
      reports_ = reports_ && (axis.name == op.attrs.text("axis") || mesh.index(axis.name, memory.rank) == 0);
  }

  void run() override {
    if (!reports_) return;
    nlohmann::ordered_json line = {{"step", memory_.table->step}};  // counted from 1
    const auto square = [&](int64_t i) {
      return load_element(memory_.program->tensors[norms_].dtype, memory_.data(norms_), i);
    };
    std::map<std::string, std::pair<double, double>> squares;  // a unit with scattered parameters has several entries
    for (int64_t i = 0; i < std::ssize(units_); ++i) {
      auto& [param, grad] = squares[units_[i].get<std::string>()];
      param += square(2 * i);
      grad += square(2 * i + 1);
    }
    for (const auto& [unit, both] : squares)
      line["report"][unit] = {{"param_norm", std::sqrt(both.first)}, {"grad_norm", std::sqrt(both.second)}};
    print_(kForMetrics + line.dump());
  }

 private:
  RankMemory memory_;
  TensorId norms_;
  nlohmann::json units_;
  std::function<void(const std::string&)> print_;
  bool reports_ = true;
};

class Transfer final : public Kernel {
 public:
  Transfer(const void* from, void* to, int64_t bytes) : from_(from), to_(to), bytes_(bytes) {}
  void run() override { std::memcpy(to_, from_, bytes_); }

 private:
  const void* from_;
  void* to_;
  size_t bytes_;
};

// Formats whole numbers below 2^53 in full and other numbers with six digits.
std::string element_text(Dtype dtype, const void* data, int64_t i) {
  if (dtype == Dtype::i64) return fmt::format("{}", static_cast<const int64_t*>(data)[i]);
  constexpr double kAllWhole = 0x1p53;
  const double value = load_element(dtype, data, i);
  if (std::abs(value) < kAllWhole && value == std::trunc(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{:.6g}", value);
}

std::string nested(const Tensor& tensor, const void* data, size_t dim, int64_t& next) {
  if (dim == tensor.shape.size()) return element_text(tensor.dtype, data, next++);
  std::string out = "[";
  for (int64_t i = 0; i < tensor.shape[dim]; ++i) out += (i ? ", " : "") + nested(tensor, data, dim + 1, next);
  return out + "]";
}

}  // namespace

std::unique_ptr<Kernel> make_host_kernel(const RankMemory& memory, const Op& op, const HostServices& services) {
  if (op.is(ops::next_batch)) return make_next_batch(memory, op, services);
  if (op.is(ops::print)) return std::make_unique<Print>(memory, op, services.print);
  if (op.is(ops::write_rows)) return make_write_rows(memory, op, services.predictions);
  if (op.is(ops::report_norms)) return std::make_unique<ReportNorms>(memory, op, services.print);
  if (std::unique_ptr<Kernel> kernel = make_checkpoint_kernel(memory, op, services.checkpoints, services.print))
    return kernel;
  if (std::unique_ptr<Kernel> kernel = make_generation_kernel(memory, op, services.generation)) return kernel;
  if (op.is(ops::require_finite)) return make_require_finite(memory, op);
  if (op.is(ops::require_same)) return make_require_same(memory, op);
  PRUN_CHECK(false, "no host op " + std::string(op.def->name));
  return nullptr;
}

std::unique_ptr<Kernel> make_local_kernel(const Device& device, const RankMemory& memory, const Op& op,
                                          const HostServices& services, int threads) {
  if (op.def->op_class == OpClass::host) return make_host_kernel(memory, op, services);
  if (op.def->op_class != OpClass::transfer) return device.make_kernel(memory, op, threads);
  const int64_t from = memory.program->tensors[op.reads[0]].bytes(), to = memory.program->tensors[op.writes[0]].bytes();
  PRUN_CHECK(from == to, fmt::format("{} of {} bytes to {}", op.def->name, from, to));
  const void* source = memory.data(op.reads[0]);
  void* target = memory.data(op.writes[0]);
  // Compute waits for a snapshot, so its threads are free.
  if (memory.program->buffers[memory.program->tensors[op.writes[0]].buffer].role == Role::snapshot)
    return cpu::make_snapshot(source, target, from, threads);
  return std::make_unique<Transfer>(source, target, from);
}

std::string tensor_text(const Tensor& tensor, const void* data, int64_t limit) {
  int64_t next = 0;
  if (limit < 0) return nested(tensor, data, 0, next);
  Tensor first = tensor;
  first.shape = {std::min(limit, tensor.count())};
  return nested(first, data, 0, next);
}

}  // namespace prun
