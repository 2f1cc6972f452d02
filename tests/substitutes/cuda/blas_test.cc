// Compares the GEMMs of the substitute for cuBLASLt with plain loops, and checks its refusals.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace {

struct Sizes {
  int m, n, k;
};

class Blas : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS); }
  void TearDown() override { cublasLtDestroy(handle_); }

  // op(a) is m x k in column-major memory, transposed k x m; op(b) is k x n.
  struct Job {
    Sizes sizes;
    bool transpose_a = false, transpose_b = false;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    int aux_ld = 0;
    float* bias = nullptr;
    float* aux = nullptr;
    uint32_t alignment = 4;
    size_t workspace = 0;
  };
  cublasStatus_t multiply(const Job& job, const float* a, const float* b, float* d, const void* workspace = nullptr,
                          size_t workspace_bytes = 0) {
    const auto [m, n, k] = job.sizes;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t la = nullptr, lb = nullptr, ld = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, job.transpose_a ? k : m, job.transpose_a ? m : k,
                               job.transpose_a ? k : m);
    cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, job.transpose_b ? n : k, job.transpose_b ? k : n,
                               job.transpose_b ? n : k);
    cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, m, n, m);
    const auto set = [&](cublasLtMatmulDescAttributes_t name, const auto& value) {
      EXPECT_EQ(cublasLtMatmulDescSetAttribute(product, name, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{job.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{job.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(job.epilogue));
    if (job.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, job.bias);
    if (job.aux != nullptr) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, job.aux);
    if (job.aux != nullptr) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{job.aux_ld});
    cublasLtMatmulPreferenceCreate(&preference);
    for (int i = 0; i < 4; ++i)
      cublasLtMatmulPreferenceSetAttribute(
          preference, static_cast<cublasLtMatmulPreferenceAttributes_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
          &job.alignment, sizeof job.alignment);
    const uint64_t most = job.workspace;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, product, la, lb, ld, ld, preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS) {
      const float one = 1, zero = 0;
      status = cublasLtMatmul(handle_, product, &one, a, la, b, lb, &zero, d, ld, d, ld, &found.algo,
                              const_cast<void*>(workspace), workspace_bytes, nullptr);
      cudaStreamSynchronize(nullptr);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {la, lb, ld}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(product);
    return status;
  }

  static std::vector<float> random(size_t count, unsigned seed) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> real(-1, 1);
    std::vector<float> values(count);
    for (float& value : values) value = real(engine);
    return values;
  }

  cublasLtHandle_t handle_ = nullptr;
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

TEST_F(Blas, ProductsAndEpilogues) {
  for (const auto [m, n, k] : {Sizes{1, 1, 1}, {8, 3, 5}, {16, 9, 33}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        const auto a = random(static_cast<size_t>(m * k), 1), b = random(static_cast<size_t>(k * n), 2);
        auto bias = random(static_cast<size_t>(m), 3);
        const auto at = [&, m = m, k = k](int i, int p) {
          return double{a[static_cast<size_t>(ta ? i * k + p : p * m + i)]};
        };
        const auto bt = [&, n = n, k = k](int p, int j) {
          return double{b[static_cast<size_t>(tb ? p * n + j : j * k + p)]};
        };
        std::vector<float> d(static_cast<size_t>(m * n)), aux(static_cast<size_t>((m + 7) / 8 * 8 * n)),
            sums(static_cast<size_t>(n));
        const Job plain{{m, n, k}, ta, tb};
        Job fused = plain;
        fused.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
        fused.bias = bias.data(), fused.aux = aux.data(), fused.aux_ld = (m + 7) / 8 * 8;
        Job gradient = plain;
        gradient.epilogue = CUBLASLT_EPILOGUE_BGRADB;
        gradient.bias = sums.data();
        for (const Job& job : {plain, fused, gradient}) {
          const bool with_gelu = job.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
          if (with_gelu && reinterpret_cast<uintptr_t>(aux.data()) % 16 != 0) continue;
          ASSERT_EQ(multiply(job, a.data(), b.data(), d.data()), CUBLAS_STATUS_SUCCESS);
          for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) {
              double x = 0;
              for (int p = 0; p < k; ++p) x += at(i, p) * bt(p, j);
              if (with_gelu) x += bias[static_cast<size_t>(i)];
              const double kept = with_gelu ? aux[static_cast<size_t>(j * fused.aux_ld + i)] : x;
              ASSERT_NEAR(kept, x, 1e-5);
              ASSERT_NEAR(d[static_cast<size_t>(j * m + i)], with_gelu ? gelu(x) : x, 1e-5);
            }
        }
        for (int j = 0; j < n; ++j) {
          double sum = 0;
          for (int p = 0; p < k; ++p) sum += bt(p, j);
          ASSERT_NEAR(sums[static_cast<size_t>(j)], sum, 1e-5);
        }
      }
}

TEST_F(Blas, WhatCublasRefuses) {
  alignas(256) static float a[4096], b[4096], d[4096], workspace[4096];
  Job job{{8, 8, 64}};
  EXPECT_EQ(multiply(job, a, b, d), CUBLAS_STATUS_SUCCESS);
  job.alignment = 256;
  EXPECT_EQ(multiply(job, a, b + 1, d), CUBLAS_STATUS_INVALID_VALUE);  // the heuristic was promised more
  job.alignment = 4;
  EXPECT_EQ(multiply(job, a, b + 1, d), CUBLAS_STATUS_SUCCESS);
  job.workspace = sizeof workspace;  // so it chooses a split-K
  EXPECT_EQ(multiply(job, a, b, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(job, a, b, d, workspace + 1, sizeof workspace - 4), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(job, a, b, d, workspace, sizeof workspace), CUBLAS_STATUS_SUCCESS);
  EXPECT_TRUE(std::isnan(workspace[0]));
  job.workspace = 0;
  job.epilogue = CUBLASLT_EPILOGUE_BIAS;
  EXPECT_EQ(multiply(job, a, b, d), CUBLAS_STATUS_INVALID_VALUE);  // without a bias
  job.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
  job.aux = workspace, job.aux_ld = 9;
  EXPECT_EQ(multiply(job, a, b, d), CUBLAS_STATUS_INVALID_VALUE);
  job.aux_ld = 16;
  EXPECT_EQ(multiply(job, a, b, d), CUBLAS_STATUS_SUCCESS);
  job.epilogue = CUBLASLT_EPILOGUE_RELU_AUX;
  EXPECT_EQ(multiply(job, a, b, d), CUBLAS_STATUS_NOT_SUPPORTED);
}

}  // namespace
