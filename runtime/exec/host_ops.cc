// The next batch depends on the seed, the step and the global index of the sample only, never on the mesh. An
// evaluation's depends on its place in the evaluation instead of the step, so that all evaluations see the same
// samples.
#include "exec/host_ops.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "device/element.h"
#include "device/share.h"
#include "exec/finite.h"
#include "exec/replicas.h"
#include "ir/ops.h"
#include "prun/philox.h"

namespace prun {
namespace {

// Keys of the random streams, apart from those of parameters (which are 0, 1, 2, ...).
constexpr uint64_t kDataKey = 1ULL << 62, kEvalKey = kDataKey + 2;

class NextBatch final : public Kernel {
 public:
  NextBatch(const RankMemory& memory, const Op& op, const HostServices& services)
      : memory_(memory),
        source_(memory.program->bodies[memory.body].data),
        dataset_(services.datasets[memory.body]),
        site_(op.site) {
    const Share share = share_along(memory, op.attrs.text("axis"));
    PRUN_CHECK(source_.global_batch % share.of == 0,
               fmt::format("{} samples on {} ranks", source_.global_batch, share.of));
    PRUN_CHECK(op.attrs.text("tokens_axis").empty() || op.attrs.has("chunks"),
               "next_batch: tokens_axis without chunks");
    local_ = source_.global_batch / share.of;
    micro_ = local_ / op.attrs.integer("micro", 1);
    first_ = micro_ * share.index;
    stride_ = micro_ * share.of;
    std::string names = op.attrs.text("names");
    for (size_t i = 0, begin = 0; i < op.writes.size(); ++i) {
      size_t end = names.find(',', begin);
      outputs_.push_back(
          {names.substr(begin, end - begin), &memory.program->tensors[op.writes[i]], memory.data(op.writes[i])});
      begin = end + 1;
    }
    if (outputs_[0].tensor->dtype == Dtype::i32) positions_.emplace(memory, op.attrs, outputs_[0].per_sample(local_));
  }

  void run() override {
    for (int64_t s = 0; s < local_; ++s) {
      int64_t batch = of_step_ ? memory_.table->step : memory_.table->eval_batch;
      int64_t sample = batch * source_.global_batch + s / micro_ * stride_ + first_ + s % micro_;
      if (source_.kind == "index")
        index(s, sample);
      else if (source_.kind == "random")
        random(s, sample);
      else
        tokens(s, sample);
    }
  }

 private:
  struct Output {
    std::string name;
    const Tensor* tensor;
    void* data;
    int64_t per_sample(int64_t local) const { return tensor->count() / local; }
    bool is_target() const { return name == "y" || name == "targets"; }
  };

  void index(int64_t s, int64_t sample) {
    for (const Output& out : outputs_)
      for (int64_t i = 0, n = out.per_sample(local_); i < n; ++i)
        store_element(out.tensor->dtype, out.data, s * n + i, static_cast<double>(sample));
  }

  void random(int64_t s, int64_t sample) {
    for (const Output& out : outputs_) {
      uint64_t key = key_ + (out.is_target() ? 1 : 0);  // by name: a pipeline's stage may need only one of them
      for (int64_t i = 0, n = out.per_sample(local_); i < n; ++i) {
        if (out.tensor->dtype == Dtype::i32)
          static_cast<int32_t*>(out.data)[s * n + i] = static_cast<int32_t>(philox::integer(
              memory_.table->seed, key, static_cast<uint64_t>(sample * positions_->whole() + positions_->of(i)), 0,
              source_.vocab - 1));
        else
          store_element(out.tensor->dtype, out.data, s * n + i, normal(key, static_cast<uint64_t>(sample * n + i)));
      }
    }
  }

  double normal(uint64_t key, uint64_t element) const {
    philox::Words words = philox::block(memory_.table->seed, key, element);
    return static_cast<double>(philox::normals(words[0], words[1]).first);
  }

  // A window of context + 1 tokens at a random place: inputs are all but the last, targets all but the first. Of both
  // this rank may hold a part.
  void tokens(int64_t s, int64_t sample) {
    int64_t length = outputs_[0].per_sample(local_), context = positions_->whole(),
            width = source_.kind == "tokens" ? 2 : 1;
    int64_t places = dataset_->size() / width - context;
    int64_t at = philox::integer(memory_.table->seed, key_, static_cast<uint64_t>(sample), 0, places - 1);
    for (const Output& out : outputs_) {
      int32_t* data = static_cast<int32_t*>(out.data) + s * length;
      int64_t shift = out.is_target() ? 1 : 0;
      for (int64_t i = 0; i < length; ++i) {
        int64_t place = at + positions_->of(i) + shift;
        const uint8_t* p = dataset_->bytes() + place * width;
        data[i] = width == 1 ? p[0] : p[0] | p[1] << 8;
        if (data[i] >= source_.vocab) out_of_vocabulary(data[i], place);
      }
    }
  }

  [[noreturn]] void out_of_vocabulary(int32_t token, int64_t place) const {
    throw usage_error(fmt::format(
        "{}: token {} at position {} is not in the vocabulary of {}: make vocab larger or check that the file is "
        "what data says",
        source_.path, token, place, source_.vocab));
  }

  RankMemory memory_;
  bool of_step_ = memory_.body == kStepBody;
  uint64_t key_ = of_step_ ? kDataKey : kEvalKey;
  DataSource source_;
  std::shared_ptr<Dataset> dataset_;
  Site site_;
  // Samples: of this rank, of its microbatches; where its first one begins, and the next one behind it.
  int64_t local_ = 0, micro_ = 0, first_ = 0, stride_ = 0;
  std::optional<TokenPositions> positions_;  // of this rank in a sample, where samples are tokens
  std::vector<Output> outputs_;
};

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

// {"step":9,"report":{"block0":{"param_norm":1.5,"grad_norm":0.25}}}, from squares of norms. Ranks that differ only
// along the op's axis have units of their own; of those that have the same, the first one reports.
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
    nlohmann::ordered_json line = {{"step", memory_.table->step - 1}};
    const auto square = [&](int64_t i) {
      return load_element(memory_.program->tensors[norms_].dtype, memory_.data(norms_), i);
    };
    std::map<std::string, std::pair<double, double>> squares;  // a unit whose parameters lie apart has several
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
  Transfer(const void* from, void* to, int64_t bytes) : from_(from), to_(to), bytes_(static_cast<size_t>(bytes)) {}
  void run() override { std::memcpy(to_, from_, bytes_); }

 private:
  const void* from_;
  void* to_;
  size_t bytes_;
};

std::string nested(const Tensor& tensor, const void* data, size_t dim, int64_t& next) {
  if (dim == tensor.shape.size()) return fmt::format("{:.6g}", load_element(tensor.dtype, data, next++));
  std::string out = "[";
  for (int64_t i = 0; i < tensor.shape[dim]; ++i) out += (i ? ", " : "") + nested(tensor, data, dim + 1, next);
  return out + "]";
}

}  // namespace

Dataset::Dataset(const DataSource& source) {
  int fd = open(source.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw usage_error(fmt::format("data file {}: {}", source.path, strerror(errno)));
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size != source.file_bytes) {
    close(fd);
    throw usage_error(
        fmt::format("data file {} has {} bytes, the plan was compiled for {}: is it the same file on every node?",
                    source.path, static_cast<int64_t>(info.st_size), source.file_bytes));
  }
  mapped_ = info.st_size;
  void* p = mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) throw usage_error(fmt::format("data file {}: {}", source.path, strerror(errno)));
  mapping_ = static_cast<const uint8_t*>(p);
  bytes_ = mapping_ + source.skip_bytes;
  size_ = mapped_ - source.skip_bytes;
}

Dataset::~Dataset() {
  if (mapping_) munmap(const_cast<uint8_t*>(mapping_), static_cast<size_t>(mapped_));
}

HostServices open_host_services(const Program& program, std::function<void(const std::string&)> print) {
  HostServices services;
  services.print = std::move(print);
  for (const Body& body : program.bodies)
    services.datasets.push_back(body.data.path.empty() ? nullptr : std::make_shared<Dataset>(body.data));
  return services;
}

std::unique_ptr<Kernel> make_host_kernel(const RankMemory& memory, const Op& op, const HostServices& services) {
  if (op.is(ops::next_batch)) return std::make_unique<NextBatch>(memory, op, services);
  if (op.is(ops::print)) return std::make_unique<Print>(memory, op, services.print);
  if (op.is(ops::report_norms)) return std::make_unique<ReportNorms>(memory, op, services.print);
  if (std::unique_ptr<Kernel> kernel = make_checkpoint_kernel(memory, op, services.checkpoints)) return kernel;
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
  return std::make_unique<Transfer>(memory.data(op.reads[0]), memory.data(op.writes[0]), from);
}

std::string tensor_text(const Tensor& tensor, const void* data, int64_t limit) {
  int64_t next = 0;
  if (limit < 0) return nested(tensor, data, 0, next);
  Tensor first = tensor;
  first.shape = {std::min(limit, tensor.count())};
  return nested(first, data, 0, next);
}

}  // namespace prun
