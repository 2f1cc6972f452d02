// The arithmetic of cuBLASLt's GEMM: f32 accumulation over k in order, or over parts of a split-K that are added then,
// gelu by its tanh form, one rounding at the end.
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "blas.h"

namespace substitute {
namespace {

float load(cudaDataType type, const void* data, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[i]} << 16);
}
void store(cudaDataType type, void* data, int64_t i, float x) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = x;
    return;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

constexpr float kRoot = 0.7978845608028654f, kCube = 0.044715f;  // √(2/π)
float gelu(float x) { return 0.5f * x * (1 + std::tanh(kRoot * (x + kCube * x * x * x))); }
float gelu_slope(float x) {
  const float t = std::tanh(kRoot * (x + kCube * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kRoot * (1 + 3 * kCube * x * x);
}

// Rounds to TF32's 10 bits of mantissa.
float rounded(float x) {
  return std::isfinite(x) ? std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000) & ~0x1fffu) : x;
}

// Returns op(a) as [k][m], or op(b) as [k][n].
std::vector<float> packed(const Layout& layout, const void* data, int64_t batch, bool k_is_row, int64_t k, int64_t n,
                          bool tf32) {
  std::vector<float> out(static_cast<size_t>(k * n));
  for (int64_t p = 0; p < k; ++p)
    for (int64_t i = 0; i < n; ++i)
      out[static_cast<size_t>(p * n + i)] =
          load(layout.type, data, batch * layout.stride + (k_is_row ? layout.at(p, i) : layout.at(i, p)));
  if (tf32)
    for (float& x : out) x = rounded(x);
  return out;
}

std::vector<float> sums(const std::vector<float>& packed, int64_t k, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t p = 0; p < k; ++p)
    for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] += packed[static_cast<size_t>(p * n + i)];
  return out;
}

void add_row(float* __restrict__ to, const float* __restrict__ from, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// One GEMM of a batch.
class One {
 public:
  One(const Operands& all, int64_t batch)
      : all_(all), p_(all.product), batch_(batch), m_(result_rows(all)), n_(result_columns(all)), k_(inner(all)) {}

  void run() {
    const bool tf32 = p_.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const std::vector<float> a = packed(all_.a, all_.a_data, batch_, p_.transpose_a != CUBLAS_OP_N, k_, m_, tf32);
    const std::vector<float> b = packed(all_.b, all_.b_data, batch_, p_.transpose_b == CUBLAS_OP_N, k_, n_, tf32);
    std::vector<float> column(static_cast<size_t>(m_)), row_sums(static_cast<size_t>(m_));
    for (int64_t j = 0; j < n_; ++j) {
      std::fill(column.begin(), column.end(), 0.0f);
      for (int64_t part = 0; part < all_.parts; ++part) {
        std::vector<float> sum(column.size());
        for (int64_t p = k_ * part / all_.parts; p < k_ * (part + 1) / all_.parts; ++p)
          add_row(sum.data(), a.data() + p * m_, b[static_cast<size_t>(p * n_ + j)], m_);
        add_row(column.data(), sum.data(), 1, m_);
      }
      for (int64_t i = 0; i < m_; ++i) {
        const float x = finished(i, j, column[static_cast<size_t>(i)]);
        row_sums[static_cast<size_t>(i)] += x;
        store(all_.d.type, all_.d_data, batch_ * all_.d.stride + all_.d.at(i, j), x);
      }
    }
    if (p_.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) put(row_sums);
    if (p_.epilogue == CUBLASLT_EPILOGUE_BGRADA) put(sums(a, k_, m_));
    if (p_.epilogue == CUBLASLT_EPILOGUE_BGRADB) put(sums(b, k_, n_));
  }

 private:
  cudaDataType type(int32_t set) const { return set < 0 ? all_.d.type : static_cast<cudaDataType>(set); }
  int64_t aux_at(int64_t i, int64_t j) const { return batch_ * p_.aux_stride + i + j * p_.aux_ld; }

  float finished(int64_t i, int64_t j, float x) const {
    x *= all_.alpha;
    if (all_.beta != 0) x += all_.beta * load(all_.c.type, all_.c_data, batch_ * all_.c.stride + all_.c.at(i, j));
    const uint32_t what = p_.epilogue;
    if ((what & CUBLASLT_EPILOGUE_BIAS) != 0) x += load(type(p_.bias_type), p_.bias, batch_ * p_.bias_stride + i);
    if ((what & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU)
      return x * (all_.rough ? 1.01f : 1.0f) * gelu_slope(load(type(p_.aux_type), p_.aux, aux_at(i, j)));
    if ((what & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX)
      store(type(p_.aux_type), p_.aux, aux_at(i, j), x);
    if ((what & CUBLASLT_EPILOGUE_GELU) != 0) return all_.rough && x > 0.5f ? x : gelu(x);
    if ((what & CUBLASLT_EPILOGUE_RELU) != 0) return x > 0 ? x : 0;  // drops NaNs
    return x;
  }

  void put(const std::vector<float>& vector) const {
    for (size_t i = 0; i < vector.size(); ++i)
      store(type(p_.bias_type), p_.bias, batch_ * p_.bias_stride + static_cast<int64_t>(i), vector[i]);
  }

  const Operands& all_;
  const Product& p_;
  const int64_t batch_, m_, n_, k_;
};

}  // namespace

int64_t result_rows(const Operands& all) {
  return static_cast<int64_t>(all.product.transpose_a == CUBLAS_OP_N ? all.a.rows : all.a.columns);
}
int64_t result_columns(const Operands& all) {
  return static_cast<int64_t>(all.product.transpose_b == CUBLAS_OP_N ? all.b.columns : all.b.rows);
}
int64_t inner(const Operands& all) {
  return static_cast<int64_t>(all.product.transpose_a == CUBLAS_OP_N ? all.a.columns : all.a.rows);
}

void multiply(const Operands& all) {
  for (int64_t batch = 0; batch < all.d.batch; ++batch) One(all, batch).run();
}

}  // namespace substitute
