// The fields of cuBLASLt's descriptors, and the GEMM that they describe.
#pragma once
#include <cublasLt.h>

#include <cstdint>

namespace substitute {

struct Layout {
  cudaDataType type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int64_t ld = 0, stride = 0;  // in elements
  int32_t order = CUBLASLT_ORDER_COL, batch = 1;

  int64_t at(int64_t row, int64_t column) const {
    return order == CUBLASLT_ORDER_COL ? row + column * ld : row * ld + column;
  }
};

struct Product {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType scale = CUDA_R_32F;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  int64_t bias_stride = 0;
  void* aux = nullptr;
  int64_t aux_ld = 0, aux_stride = 0;
  int32_t bias_type = -1, aux_type = -1;  // -1: D's type
};

// d = epilogue(alpha·op(a)·op(b) + beta·c).
struct Operands {
  Product product;
  Layout a, b, c, d;
  const void *a_data, *b_data, *c_data;
  void* d_data;
  float alpha, beta;
  int64_t parts = 1;   // parts of a split-K
  bool rough = false;  // gelu is wrong by a percent
};

int64_t result_rows(const Operands& all);
int64_t result_columns(const Operands& all);
int64_t inner(const Operands& all);  // k
void multiply(const Operands& all);
inline size_t bytes_of(cudaDataType type) { return type == CUDA_R_16BF ? 2 : 4; }

}  // namespace substitute
