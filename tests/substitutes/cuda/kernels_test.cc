// Tests kernels on the substitute: they compute, and a hang, a race or a read of garbage ends the process.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

namespace {

cudaError_t launch(void (*kernel)(float*, int), dim3 grid, dim3 block, float* data, int n, size_t shared = 0) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  return cudaLaunchKernelEx(&config, kernel, data, n);
}

class Kernels : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), kBytes), cudaSuccess);
    ASSERT_EQ(cudaMemset(data_, 0, kBytes), cudaSuccess);
  }
  void TearDown() override { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  void run(void (*kernel)(float*, int), dim3 grid, dim3 block, int n, size_t shared = 0) {
    ASSERT_EQ(launch(kernel, grid, block, data_, n, shared), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  static constexpr int kFloats = 1000;
  static constexpr size_t kBytes = kFloats * sizeof(float);
  float* data_ = nullptr;
};

__global__ void places(float* data, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) data[i] += static_cast<float>(i);
}

TEST_F(Kernels, EveryThreadRunsOnce) {
  run(places, 11, 96, kFloats);
  for (int i = 0; i < kFloats; ++i) ASSERT_EQ(data_[i], i);
}

__device__ float sum_of_warp(float x) {
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
  return x;
}
__global__ void sums(float* data, int n) {
  __shared__ float parts[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float x = static_cast<int>(threadIdx.x) < n ? static_cast<float>(threadIdx.x) : 0;
  x = sum_of_warp(x);
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  x = sum_of_warp(lane < blockDim.x / 32 ? parts[lane] : 0);
  if (threadIdx.x == 0) data[blockIdx.x] = x;
}

TEST_F(Kernels, ThreadsMeet) {
  for (const unsigned threads : {32u, 256u, 1024u}) {
    run(sums, 7, threads, static_cast<int>(threads) - 3);
    const int n = static_cast<int>(threads) - 3;
    for (int block = 0; block < 7; ++block) ASSERT_EQ(data_[block], n * (n - 1) / 2);
  }
}

__global__ void turned(float* data, int n) {
  PRUN_SHARED(bytes);
  auto* shared = reinterpret_cast<float*>(bytes);
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  data[threadIdx.x] = shared[static_cast<unsigned>(n) - 1 - threadIdx.x];
}
__global__ void turned_too_soon(float* data, int n) {
  PRUN_SHARED(bytes);
  auto* shared = reinterpret_cast<float*>(bytes);
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  data[threadIdx.x] = shared[static_cast<unsigned>(n) - 1 - threadIdx.x];
}

TEST_F(Kernels, SharedMemoryWithAndWithoutABarrier) {
  const auto wrong = [&] {
    int count = 0;
    for (int i = 0; i < 256; ++i) count += data_[i] == static_cast<float>(255 - i) ? 0 : 1;
    return count;
  };
  run(turned, 1, 256, 256, 1024);
  EXPECT_EQ(wrong(), 0);
  run(turned_too_soon, 1, 256, 256, 1024);
  EXPECT_GT(wrong(), 0);
}

TEST_F(Kernels, LaunchesThatCudaRefuses) {
  EXPECT_EQ(launch(places, {1, 65536}, 32, data_, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(places, 0, 32, data_, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(places, 1, 1025, data_, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(places, 1, 32, data_, 0, 49153), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(places, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024 + 1),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(places, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024), cudaSuccess);
  run(places, 1, 32, 0, 227 * 1024);
}

__global__ void half_a_barrier(float*, int n) {
  if (static_cast<int>(threadIdx.x) < n) __syncthreads();
}
__global__ void two_barriers(float*, int n) {
  if (static_cast<int>(threadIdx.x) < n)
    __syncthreads();
  else
    __syncthreads();
}
__global__ void from_nobody(float* data, int) { data[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 20); }
__global__ void without_itself(float* data, int) { data[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1); }
__global__ void lanes_apart(float* data, int n) {
  if (static_cast<int>(threadIdx.x) < n) data[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  __syncthreads();
}
__global__ void beyond(float* data, int n) { data[n + 4096] = 1; }
__global__ void just_beyond(float* data, int n) { data[n] = 1; }
__global__ void misaligned(float* data, int n) { *reinterpret_cast<float4*>(data + n) = {1, 2, 3, 4}; }
__global__ void too_large(float* data, int n) { data[0] = static_cast<float>(n * 65536); }

using KernelsDeathTest = Kernels;
TEST_F(KernelsDeathTest, WhatAGpuWouldNotForgive) {
  EXPECT_DEATH(run(half_a_barrier, 1, 64, 32), "__syncthreads at .*kernels_test.cc");
  EXPECT_DEATH(run(two_barriers, 1, 64, 32), "threads of a block meet at different places");
  EXPECT_DEATH(run(from_nobody, 1, 16, 0), "__shfl_sync at .*a lane reads from one that is not there");
  EXPECT_DEATH(run(without_itself, 1, 32, 0), "whose mask is without it");
  EXPECT_DEATH(
      run(lanes_apart, 1, 32, 16),
      "a block waits forever.*threads at __syncthreads.*lanes 0x0000ffff of mask 0xffffffff at __shfl_xor_sync");
  EXPECT_DEATH(run(beyond, 1, 1, kFloats), "");
  EXPECT_DEATH(run(just_beyond, 1, 1, kFloats), "something was written behind 4000 bytes of memory");
  EXPECT_DEATH(run(misaligned, 1, 1, 1), "misaligned address");
  EXPECT_DEATH(run(too_large, 1, 1, 40000), "signed integer overflow");
}

}  // namespace
