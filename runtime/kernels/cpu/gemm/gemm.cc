// See gemm.h. Three ways, chosen when the product is made, by its shape and the kernels taken (kernel_choice.h) alone:
// amx_gemm for bf16 where there are tiles, oneDNN's matmul primitive (brgemm) for small products of bf16 where the CPU
// multiplies it and for those whose B is transposed, packed_gemm for all else. Each gives the same bits on any number
// of threads; brgemm is restricted for that.
#include "kernels/cpu/gemm/gemm.h"

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
#include "kernels/cpu/gemm/amx_gemm.h"
#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/kernel_choice.h"

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
  dnnl_primitive_desc_t primitive = nullptr;  // null: oneDNN has no brgemm for this on this machine
  dnnl_memory_desc_t a, b, bias, c;
  explicit Description(const GemmShape& s)
      : a(matrix(s.m, s.k, s.input, s.transpose_a)),
        b(matrix(s.k, s.n, s.input, s.transpose_b)),
        bias(matrix(1, s.n, s.input, false)),
        c(matrix(s.m, s.n, s.output, false)) {
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
    dnnl_primitive_desc_destroy(primitive);  // what else there is cuts by threads and allocates, or is slow
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

// A primitive with its operands, for as many threads as oneDNN sees when it is made.
class Brgemm {
 public:
  Brgemm(const Description& description, const void* a, const void* b, const void* bias, const void* c,
         const void* scratch) {
    check(dnnl_primitive_create(&primitive_, description.primitive), "dnnl_primitive_create");
    check(dnnl_stream_create(&stream_, engine(), dnnl_stream_default_flags), "dnnl_stream_create");
    add(DNNL_ARG_SRC, description.a, a);
    add(DNNL_ARG_WEIGHTS, description.b, b);
    if (bias != nullptr) add(DNNL_ARG_BIAS, description.bias, bias);
    add(DNNL_ARG_DST, description.c, c);
    add(DNNL_ARG_SCRATCHPAD, *description.scratch(), scratch);
  }
  Brgemm(const Brgemm&) = delete;
  Brgemm& operator=(const Brgemm&) = delete;
  ~Brgemm() {
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

// Memory with pages of its own, given back when freed: the heap would keep them.
class Room {
 public:
  explicit Room(int64_t bytes) : bytes_(std::max<int64_t>(bytes, 1)) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(at);
  }
  Room(Room&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  ~Room() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  bool operator==(const Room& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data_, other.data_, bytes_) == 0;
  }

 private:
  size_t bytes_;
  std::byte* data_;
};

Room random_numbers(int64_t count, Dtype dtype) {
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Room room(count * dtype_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == Dtype::f32)
      reinterpret_cast<float*>(room.data())[i] = uniform(random);
    else
      reinterpret_cast<bf16*>(room.data())[i] = to_bf16(uniform(random));
  }
  return room;
}

// The largest number of threads with which brgemm gives the bits of one thread, found by trying once for each shape on
// random numbers: where C has too few blocks it splits the sum over k between threads, and adds in another order. Not
// before a fork, since it starts threads.
int steady_threads(const GemmShape& s) {
  if (s.threads == 1) return 1;
  static std::mutex mutex;
  static std::map<GemmShape, int> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(s);
  if (found != known.end()) return found->second;
  const Room a = random_numbers(s.m * s.k, s.input), b = random_numbers(s.k * s.n, s.input),
             bias = random_numbers(s.n, s.input);
  const auto result = [&](int threads) {
    const ThreadCount count(threads);
    const Description description(s);
    Room c(s.m * s.n * dtype_bytes(s.output));
    if (description.primitive == nullptr) return Room(0);
    const Room scratch(static_cast<int64_t>(dnnl_memory_desc_get_size(description.scratch())));
    Brgemm(description, a.data(), b.data(), s.bias ? bias.data() : nullptr, c.data(), scratch.data()).run();
    return c;
  };
  const Room wanted = result(1);
  int threads = s.threads;
  while (threads > 1 && !(result(threads) == wanted)) threads /= 2;
  return known[s] = threads;
}

// Whether packed_gemm is at least as fast as brgemm with products of pairs: where copies of A and B, and C, are small
// beside the multiplications, and a last panel of B that is not full is small beside the others. With B transposed
// brgemm is faster.
bool takes_pairs(const GemmShape& s) {
  constexpr int64_t kLeast = 128, kPanel = 32;
  const int64_t padded = (s.n + kPanel - 1) / kPanel * kPanel;
  return s.input == Dtype::bf16 && !s.transpose_b && std::min({s.m, s.n, s.k}) >= kLeast &&
         (padded - s.n) * kPanel <= s.n && multiplies_pairs();
}

bool takes_brgemm(const GemmShape& s) {
  if (s.input == Dtype::f32 || kernels() < Kernels::bf16 || takes_amx(s) || takes_pairs(s)) return false;
  const ThreadCount one(1);
  return Description(s).primitive != nullptr;
}

}  // namespace

std::string gemm_library() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

int64_t gemm_scratch_bytes(const GemmShape& shape) {
  PRUN_CHECK(shape.m > 0 && shape.n > 0 && shape.k > 0, fmt::format("m={} n={} k={}", shape.m, shape.n, shape.k));
  static std::mutex mutex;
  static std::map<GemmShape, int64_t> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(shape);
  if (found != known.end()) return found->second;
  int64_t& most = known[shape];
  if (takes_amx(shape)) return most = amx_gemm_scratch_bytes(shape);
  if (!takes_brgemm(shape)) return most = packed_gemm_scratch_bytes(shape);
  for (int threads = shape.threads; threads > 0; threads /= 2) {  // each that steady_threads may find
    const ThreadCount count(threads);
    const Description description(shape);
    if (description.primitive != nullptr)
      most = std::max(most, static_cast<int64_t>(dnnl_memory_desc_get_size(description.scratch())));
  }
  return most;
}

struct Gemm::State {
  GemmShape shape;
  const void *a, *b, *bias;
  void *c, *scratch;
  std::unique_ptr<Brgemm> brgemm;  // null: packed_gemm
  int threads = 1;                 // brgemm's
};

Gemm::Gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.shape = shape;
  s.a = a, s.b = b, s.bias = bias, s.c = c, s.scratch = scratch;
  if (!takes_brgemm(shape)) return;
  s.threads = steady_threads(shape);
  const ThreadCount threads(s.threads);
  s.brgemm = std::make_unique<Brgemm>(Description(shape), a, b, shape.bias ? bias : nullptr, c, scratch);
}

Gemm::Gemm(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

void Gemm::run() const {
  const State& s = *state_;
  if (takes_amx(s.shape)) return amx_gemm(s.shape, s.a, s.b, s.bias, s.c, s.scratch);
  if (s.brgemm == nullptr) return packed_gemm(s.shape, s.a, s.b, s.bias, s.c, s.scratch);
  const ThreadCount threads(s.threads);
  s.brgemm->run();
}

bool Gemm::takes_sums() const {
  return !takes_amx(state_->shape) && state_->brgemm == nullptr && !state_->shape.transpose_b;
}

void Gemm::run_and_sum(float* sums) const {
  PRUN_CHECK(takes_sums(), "sums of a B that is copied elsewhere");
  const State& s = *state_;
  packed_gemm(s.shape, s.a, s.b, s.bias, s.c, s.scratch, false, sums);
}

bool Gemm::takes_parts() const {
  const GemmShape& s = state_->shape;
  return s.input == Dtype::f32 && s.output == Dtype::f32 && !s.bias && s.activation == Activation::none;
}

void Gemm::run_part(int64_t first, int64_t rows, bool add) const {
  const GemmShape& s = state_->shape;
  PRUN_CHECK(takes_parts(), "a part of a product of fixed size");
  const float* a = static_cast<const float*>(state_->a) + first * (s.transpose_a ? s.m : s.k);
  const float* b = static_cast<const float*>(state_->b) + (s.transpose_a ? first * s.n : 0);
  float* c = static_cast<float*>(state_->c) + (s.transpose_a ? 0 : first * s.n);
  GemmShape part = s;
  (s.transpose_a ? part.k : part.m) = rows;
  packed_gemm(part, a, b, nullptr, c, state_->scratch, add);
}

}  // namespace prun::cpu
