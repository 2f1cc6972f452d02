// oneDNN's entry in the table of GEMMs: its matmul primitive, restricted to the brgemm implementation, on the most
// threads whose results are bitwise identical to those of one.
#include "kernels/cpu/gemm/onednn.h"

#include <dnnl.h>
#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/bf16.h"

namespace prun::cpu {
namespace {

void check(dnnl_status_t status, const char* call) {
  PRUN_CHECK(status == dnnl_success, fmt::format("{} returned {}", call, static_cast<int>(status)));
}

// Sets the number of threads that oneDNN uses, for the lifetime of this object.
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

dnnl_memory_desc_t matrix(int64_t rows, int64_t columns, Dtype dtype, bool transposed, int64_t row) {
  const dnnl_dims_t dims = {rows, columns};
  const dnnl_dims_t strides = {transposed ? 1 : row, transposed ? row : 1};
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
  dnnl_primitive_desc_t primitive = nullptr;  // null: oneDNN has no brgemm for this on this machine
  dnnl_memory_desc_t a, b, bias, c;
  explicit Description(const GemmShape& s)
      : a(matrix(s.m, s.k, s.input, s.transpose_a, s.a_row())),
        b(matrix(s.k, s.n, s.input, s.transpose_b, s.b_row())),
        bias(matrix(1, s.n, s.input, false, s.n)),
        c(matrix(s.m, s.n, s.output, false, s.c_row())) {
    dnnl_matmul_desc_t desc;
    check(dnnl_matmul_desc_init(&desc, &a, &b, s.bias ? &bias : nullptr, &c), "dnnl_matmul_desc_init");
    dnnl_primitive_attr_t attr = nullptr;
    check(dnnl_primitive_attr_create(&attr), "dnnl_primitive_attr_create");
    check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad mode");
    dnnl_post_ops_t ops = nullptr;
    check(dnnl_post_ops_create(&ops), "dnnl_post_ops_create");
    append_activation(ops, s.activation);
    check(dnnl_primitive_attr_set_post_ops(attr, ops), "dnnl_primitive_attr_set_post_ops");
    const dnnl_status_t status = dnnl_primitive_desc_create(&primitive, &desc, attr, engine(), nullptr);
    if (status != dnnl_unimplemented) check(status, "dnnl_primitive_desc_create");
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    if (primitive == nullptr || is_brgemm()) return;
    dnnl_primitive_desc_destroy(primitive);  // other implementations divide work by threads and allocate, or are slow
    primitive = nullptr;
  }
  ~Description() {
    if (primitive != nullptr) dnnl_primitive_desc_destroy(primitive);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  bool is_brgemm() const {
    const char* name = "";
    check(dnnl_primitive_desc_query(primitive, dnnl_query_impl_info_str, 0, &name), "dnnl_primitive_desc_query");
    return std::strncmp(name, "brg", 3) == 0;
  }
  const dnnl_memory_desc_t* scratch() const {
    return dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0);
  }
};

// A primitive with its operands, for the number of threads that oneDNN uses at construction.
class Primitive {
 public:
  Primitive(const Description& description, const void* a, const void* b, const void* bias, const void* c,
            const void* scratch) {
    check(dnnl_primitive_create(&primitive_, description.primitive), "dnnl_primitive_create");
    check(dnnl_stream_create(&stream_, engine(), dnnl_stream_default_flags), "dnnl_stream_create");
    add(DNNL_ARG_SRC, description.a, a);
    add(DNNL_ARG_WEIGHTS, description.b, b);
    if (bias != nullptr) add(DNNL_ARG_BIAS, description.bias, bias);
    add(DNNL_ARG_DST, description.c, c);
    add(DNNL_ARG_SCRATCHPAD, *description.scratch(), scratch);
  }
  Primitive(const Primitive&) = delete;
  Primitive& operator=(const Primitive&) = delete;
  ~Primitive() {
    for (const dnnl_exec_arg_t& argument : arguments_) dnnl_memory_destroy(argument.memory);
    dnnl_stream_destroy(stream_);
    dnnl_primitive_destroy(primitive_);
  }
  void run() const {
    check(dnnl_primitive_execute(primitive_, stream_, arguments_.size(), arguments_.data()), "dnnl_primitive_execute");
  }

 private:
  void add(int argument, const dnnl_memory_desc_t& desc, const void* data) {
    dnnl_memory_t memory = nullptr;
    check(dnnl_memory_create(&memory, &desc, engine(), const_cast<void*>(data)), "dnnl_memory_create");
    arguments_.push_back({argument, memory});
  }

  dnnl_primitive_t primitive_ = nullptr;
  dnnl_stream_t stream_ = nullptr;
  std::vector<dnnl_exec_arg_t> arguments_;
};

// Memory with pages of its own, which are unmapped when it is freed; the heap would retain them.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(std::max<int64_t>(bytes, 1)) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(at);
  }
  Pages(Pages&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  bool operator==(const Pages& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data_, other.data_, bytes_) == 0;
  }

 private:
  size_t bytes_;
  std::byte* data_;
};

Pages random_numbers(int64_t count, Dtype dtype) {
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Pages pages(count * dtype_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == Dtype::f32)
      reinterpret_cast<float*>(pages.data())[i] = uniform(random);
    else
      reinterpret_cast<bf16*>(pages.data())[i] = to_bf16(uniform(random));
  }
  return pages;
}

// Returns the largest number of threads (shape.threads divided by a power of two) whose results are bitwise identical
// to those of one thread. Tries brgemm once per shape on random numbers: if C has too few blocks, brgemm splits K
// between threads, which changes the order of additions. Starts threads, so it must not run before a fork.
int steady_threads(const GemmShape& s) {
  if (s.threads == 1) return 1;
  static std::mutex mutex;
  static std::map<GemmShape, int> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(s);
  if (found != known.end()) return found->second;
  const Pages a = random_numbers((s.transpose_a ? s.k : s.m) * s.a_row(), s.input),
              b = random_numbers((s.transpose_b ? s.n : s.k) * s.b_row(), s.input), bias = random_numbers(s.n, s.input);
  const auto result = [&](int threads) {
    const ThreadCount count(threads);
    const Description description(s);
    Pages c(s.m * s.c_row() * dtype_bytes(s.output));
    if (description.primitive == nullptr) return Pages(0);
    const Pages scratch(static_cast<int64_t>(dnnl_memory_desc_get_size(description.scratch())));
    Primitive(description, a.data(), b.data(), s.bias ? bias.data() : nullptr, c.data(), scratch.data()).run();
    return c;
  };
  const Pages wanted = result(1);
  int threads = s.threads;
  while (threads > 1 && !(result(threads) == wanted)) threads /= 2;
  return known[s] = threads;
}

}  // namespace

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

bool onednn_has(const GemmShape& shape) {
  const ThreadCount one(1);
  return Description(shape).primitive != nullptr;
}

int64_t onednn_scratch_bytes(const GemmShape& shape) {
  int64_t most = 0;
  for (int threads = shape.threads; threads > 0; threads /= 2) {  // each possible result of steady_threads
    const ThreadCount count(threads);
    const Description description(shape);
    if (description.primitive != nullptr)
      most = std::max(most, static_cast<int64_t>(dnnl_memory_desc_get_size(description.scratch())));
  }
  return most;
}

struct OnednnGemm::State {
  int threads;
  std::unique_ptr<Primitive> primitive;
};

OnednnGemm::OnednnGemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch)
    : state_(std::make_unique<State>()) {
  state_->threads = steady_threads(shape);
  const ThreadCount threads(state_->threads);
  state_->primitive = std::make_unique<Primitive>(Description(shape), a, b, shape.bias ? bias : nullptr, c, scratch);
}
OnednnGemm::~OnednnGemm() = default;

void OnednnGemm::run() const {
  const ThreadCount threads(state_->threads);
  state_->primitive->run();
}

}  // namespace prun::cpu
