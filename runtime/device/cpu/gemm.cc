// See gemm.h. One matmul primitive of oneDNN per product, made once; running it hands over prebuilt arguments.
#include "device/cpu/gemm.h"

#include <dnnl.h>
#include <fmt/format.h>
#include <omp.h>

#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"

namespace prun::cpu {
namespace {

void check(dnnl_status_t status, const char* call) {
  PRUN_CHECK(status == dnnl_success, fmt::format("{} returned {}", call, static_cast<int>(status)));
}

// Makes oneDNN see this many threads while it lives.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
    if (before_ != threads) omp_set_num_threads(threads);
    changed_ = before_ != threads;
  }
  ~ThreadCount() {
    if (changed_) omp_set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
  bool changed_;
};

dnnl_engine_t engine() {
  static const dnnl_engine_t instance = [] {
    dnnl_engine_t made = nullptr;
    check(dnnl_engine_create(&made, dnnl_cpu, 0), "dnnl_engine_create");
    return made;
  }();
  return instance;
}

dnnl_data_type_t data_type(Dtype dtype) {
  PRUN_CHECK(dtype == Dtype::f32 || dtype == Dtype::bf16, std::string(dtype_name(dtype)));
  return dtype == Dtype::f32 ? dnnl_f32 : dnnl_bf16;
}

dnnl_memory_desc_t matrix(int64_t rows, int64_t columns, Dtype dtype, bool transposed) {
  const dnnl_dims_t dims = {rows, columns};
  const dnnl_dims_t strides = {transposed ? 1 : columns, transposed ? rows : 1};
  dnnl_memory_desc_t desc;
  check(dnnl_memory_desc_init_by_strides(&desc, 2, dims, data_type(dtype), strides),
        "dnnl_memory_desc_init_by_strides");
  return desc;
}

void append_activation(dnnl_post_ops_t ops, Activation activation) {
  if (activation == Activation::none) return;
  const dnnl_alg_kind_t kind = activation == Activation::relu        ? dnnl_eltwise_relu
                               : activation == Activation::gelu_tanh ? dnnl_eltwise_gelu_tanh
                                                                     : dnnl_eltwise_gelu_erf;
  check(dnnl_post_ops_append_eltwise(ops, 1.0f, kind, 0.0f, 0.0f), "dnnl_post_ops_append_eltwise");
}

struct Description {
  dnnl_primitive_desc_t primitive = nullptr;
  dnnl_memory_desc_t a, b, bias, c;
  explicit Description(const GemmShape& s)
      : a(matrix(s.m, s.k, s.input, s.transpose_a)),
        b(matrix(s.k, s.n, s.input, s.transpose_b)),
        bias(matrix(1, s.n, s.input, false)),
        c(matrix(s.m, s.n, s.output, false)) {
    PRUN_CHECK(s.m > 0 && s.n > 0 && s.k > 0, fmt::format("m={} n={} k={}", s.m, s.n, s.k));
    dnnl_matmul_desc_t desc;
    check(dnnl_matmul_desc_init(&desc, &a, &b, s.bias ? &bias : nullptr, &c), "dnnl_matmul_desc_init");
    dnnl_primitive_attr_t attr = nullptr;
    check(dnnl_primitive_attr_create(&attr), "dnnl_primitive_attr_create");
    check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad mode");
    dnnl_post_ops_t ops = nullptr;
    check(dnnl_post_ops_create(&ops), "dnnl_post_ops_create");
    append_activation(ops, s.activation);
    check(dnnl_primitive_attr_set_post_ops(attr, ops), "dnnl_primitive_attr_set_post_ops");
    check(dnnl_primitive_desc_create(&primitive, &desc, attr, engine(), nullptr), "dnnl_primitive_desc_create");
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
  }
  ~Description() { dnnl_primitive_desc_destroy(primitive); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  const dnnl_memory_desc_t* scratch() const {
    return dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0);
  }
};

}  // namespace

int64_t gemm_scratch_bytes(const GemmShape& shape) {
  static std::mutex mutex;
  static std::map<GemmShape, int64_t> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(shape);
  if (found != known.end()) return found->second;
  const ThreadCount threads(shape.threads);
  const Description description(shape);
  return known[shape] = static_cast<int64_t>(dnnl_memory_desc_get_size(description.scratch()));
}

struct Gemm::State {
  int threads = 1;
  dnnl_primitive_t primitive = nullptr;
  dnnl_stream_t stream = nullptr;
  std::vector<dnnl_exec_arg_t> arguments;

  void add(int argument, const dnnl_memory_desc_t& desc, const void* data) {
    dnnl_memory_t memory = nullptr;
    check(dnnl_memory_create(&memory, &desc, engine(), const_cast<void*>(data)), "dnnl_memory_create");
    arguments.push_back({argument, memory});
  }
  ~State() {
    for (const dnnl_exec_arg_t& argument : arguments) dnnl_memory_destroy(argument.memory);
    dnnl_stream_destroy(stream);
    dnnl_primitive_destroy(primitive);
  }
};

Gemm::Gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch)
    : state_(std::make_unique<State>()) {
  const ThreadCount threads(shape.threads);
  const Description description(shape);
  state_->threads = shape.threads;
  check(dnnl_primitive_create(&state_->primitive, description.primitive), "dnnl_primitive_create");
  check(dnnl_stream_create(&state_->stream, engine(), dnnl_stream_default_flags), "dnnl_stream_create");
  state_->add(DNNL_ARG_SRC, description.a, a);
  state_->add(DNNL_ARG_WEIGHTS, description.b, b);
  if (shape.bias) state_->add(DNNL_ARG_BIAS, description.bias, bias);
  state_->add(DNNL_ARG_DST, description.c, c);
  state_->add(DNNL_ARG_SCRATCHPAD, *description.scratch(), scratch);
}

Gemm::Gemm(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

void Gemm::run() const {
  const ThreadCount threads(state_->threads);
  const State& s = *state_;
  check(dnnl_primitive_execute(s.primitive, s.stream, static_cast<int>(s.arguments.size()), s.arguments.data()),
        "dnnl_primitive_execute");
}

}  // namespace prun::cpu
