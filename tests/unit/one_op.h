// One op with its operands and test data, runnable on any device; for tests and benchmarks of kernels.
#pragma once
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/devices.h"
#include "tests/unit/op_list.h"

namespace prun::test {

using Values = std::vector<double>;

inline const Device& cpu() {
  static const std::unique_ptr<Device> device = open_device("cpu");
  return *device;
}

inline double rounded_to(Dtype dtype, double x) {
  alignas(8) std::byte element[8];
  store_element(dtype, element, 0, x);
  return load_element(dtype, element, 0);
}

// Returns numbers in [-most, most) that the type represents exactly.
inline Values random_values(int64_t count, unsigned seed, Dtype dtype = Dtype::f32, double most = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-most, most);
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(rounded_to(dtype, uniform(generator)));
  return values;
}
inline Values random_tokens(int64_t count, unsigned seed, int64_t vocab) {
  std::mt19937 generator(seed);
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(generator() % static_cast<unsigned>(vocab)));
  return values;
}

class OneOp {
 public:
  explicit OneOp(std::string kind) : kind_(std::move(kind)) {}

  OneOp& attr(const std::string& name, Attr value) {
    attrs_.set(name, std::move(value));
    return *this;
  }
  OneOp& read(Dtype dtype, Shape shape, Values values) {
    reads_.push_back(add(dtype, std::move(shape)));
    values_.push_back(std::move(values));
    return *this;
  }
  OneOp& write(Dtype dtype, Shape shape) {
    writes_.push_back(add(dtype, std::move(shape)));
    return *this;
  }
  // Makes the op's next output alias its input `read`.
  OneOp& write_over(size_t read) {
    writes_.push_back(reads_[read]);
    return *this;
  }
  OneOp& mesh(std::vector<Axis> axes, int rank) {
    mesh_ = Mesh(std::move(axes));
    rank_ = rank;
    return *this;
  }
  OneOp& at_step(int64_t step, double learning_rate, uint64_t seed = 0) {
    table_.step = table_.update = step;
    table_.learning_rate = learning_rate;
    table_.seed = seed;
    return *this;
  }

  // Returns the same op in f64.
  OneOp in_f64() const {
    OneOp wide(kind_);
    wide.attrs_ = attrs_, wide.types_ = types_, wide.reads_ = reads_, wide.writes_ = writes_, wide.values_ = values_;
    wide.mesh_ = mesh_, wide.rank_ = rank_, wide.table_ = table_;
    for (TensorType& type : wide.types_)
      if (type.dtype == Dtype::f32 || type.dtype == Dtype::bf16) type.dtype = Dtype::f64;
    return wide;
  }
  bool runs_on(const Device& device) const {
    OpList list(device);
    for (const TensorType& type : types_) list.tensor(type);
    return list.supports(kind_, reads_, writes_, attrs_);
  }

  // Creates the kernel with its workspace and fills the inputs.
  Kernel& prepare(const Device& device, int threads = 1) {
    list_ = std::make_unique<OpList>(device, threads);
    list_->place(mesh_, rank_, table_);
    for (const TensorType& type : types_) list_->tensor(type);
    list_->op(kind_, reads_, writes_, attrs_);
    list_->make();
    for (size_t i = 0; i < reads_.size(); ++i) list_->set(reads_[i], values_[i]);
    return list_->kernel();
  }
  OneOp& run(const Device& device, int threads = 1) {
    prepare(device, threads).run();
    return *this;
  }
  Values result(size_t write = 0) const { return list_->get(writes_[write]); }
  std::vector<Values> results() const {
    std::vector<Values> all;
    for (const TensorId id : writes_) all.push_back(list_->get(id));
    return all;
  }
  // Returns the name of a tensor outside whose bounds the kernel has written, or "".
  std::string written_beside() const { return list_->written_beside(); }
  const std::string& kind() const { return kind_; }

 private:
  int add(Dtype dtype, Shape shape) {
    types_.push_back({dtype, std::move(shape)});
    return static_cast<int>(types_.size()) - 1;
  }

  std::string kind_;
  Attrs attrs_;
  std::vector<TensorType> types_;
  std::vector<TensorId> reads_, writes_;  // indices into types_
  std::vector<Values> values_;
  Mesh mesh_;
  int rank_ = 0;
  StepTable table_;
  std::unique_ptr<OpList> list_;
};

}  // namespace prun::test
