// The ops attention, attention_block and their gradients: their operands, layouts and kernels. bf16 runs on cuDNN if it
// is available and supports the shape (attention_cudnn.h); everything else runs on kernels of prun. The choice depends
// only on shapes, addresses in the arena, options and versions, so that ranks agree.
#include "attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "attention_cudnn.h"

namespace prun::cuda {
namespace {

constexpr int64_t kMostHead = 256, kMostLength = 65535 * 16;  // blocks of at least 16 rows

bool is_block(const OpView& view) { return view.kind().starts_with("attention_block"); }

// Returns the mask of the queries, one chunk or two, on the keys of the rank `hop` places before this one.
Mask mask_of(const OpView& view, int length) {
  const bool causal = view.integer("causal") != 0;
  if (!is_block(view)) return {length, {causal ? 1 : length, 0}, {causal ? 1 : 0, 0}};
  const int chunks = static_cast<int>(view.integer("chunks", 1)), chunk = length / chunks;
  const Share queries = view.share("tokens_axis");
  const int64_t hop = view.integer("hop") % queries.of, keys = (queries.index - hop + queries.of) % queries.of;
  const auto number = [&](int64_t rank, int i) { return i == 0 ? rank : 2 * queries.of - 1 - rank; };
  Mask mask{chunk, {0, 0}, {0, 0}};
  for (int i = 0; i < chunks; ++i)
    for (int j = 0; j < chunks; ++j) {
      if (!causal || number(keys, j) < number(queries.index, i)) {
        mask.seen[i] += chunk;
      } else if (number(keys, j) == number(queries.index, i)) {
        mask.seen[i] += 1, mask.more[i] = 1;
      }
    }
  return mask;
}

AttentionSizes sizes_of(const OpView& view) {
  const Tensor qkv = view.read(0);
  const int64_t heads = view.integer("heads", 1), kv_heads = view.integer("kv_heads", heads),
                all = heads + 2 * kv_heads;
  if (qkv.shape.rank() != 3 || kv_heads < 1 || heads % kv_heads != 0 || qkv.shape[2] % all != 0)
    throw Failure(PRUN_EINVAL, fmt::format("{}: {} heads and {} kv_heads in a last dim of {}", view.kind(), heads,
                                           kv_heads, qkv.shape.last()));
  AttentionSizes s;
  s.batch = qkv.shape[0];
  s.length = static_cast<int>(qkv.shape[1]);
  s.heads = static_cast<int>(heads);
  s.kv_heads = static_cast<int>(kv_heads);
  s.head = static_cast<int>(qkv.shape[2] / all);
  s.keys = s.length, s.value = s.head, s.window = 0, s.cap = 0;
  s.mask = mask_of(view, s.length);
  s.scale = 1.0f / std::sqrt(static_cast<float>(s.head));
  if (is_block(view)) view.expect_count(view.read(1), s.batch * s.length * 2 * s.kv_heads * s.head);
  return s;
}

// Returns whether the size and the address of each head of T are multiples of `bytes`.
template <class T>
bool heads_on(size_t bytes, const AttentionSizes& s, std::initializer_list<const void*> addresses) {
  return s.head * sizeof(T) % bytes == 0 && std::all_of(addresses.begin(), addresses.end(), [bytes](const void* at) {
           return reinterpret_cast<uintptr_t>(at) % bytes == 0;
         });
}

template <class T>
Heads<T> heads_at(T* data, int64_t row, int length) {
  return {data, row, row * length};
}

// Sets q, k and v from qkv; attention_block has k and v in the second tensor.
template <class T, class Op>
void set_inputs(const OpView& view, Op& op) {
  const AttentionSizes& s = op.sizes;
  const int64_t width = int64_t{s.heads} * s.head, shared = int64_t{s.kv_heads} * s.head, all = width + 2 * shared;
  const T* qkv = view.in<T>(0);
  const T* keys = is_block(view) ? view.in<T>(1) : qkv + width;
  const int64_t row = is_block(view) ? 2 * shared : all;
  op.q = heads_at(qkv, all, s.length);
  op.k = heads_at(keys, row, s.length);
  op.v = heads_at(keys + shared, row, s.length);
}

const float* before(const OpView& view, size_t read) { return view.reads() > read ? view.in<float>(read) : nullptr; }

template <class T>
AttentionForward<T> forward_of(const OpView& view) {
  AttentionForward<T> a{};
  a.sizes = sizes_of(view);
  const AttentionSizes& s = a.sizes;
  view.expect_count(view.write(0), s.batch * s.length * s.heads * s.head);
  view.expect_count(view.write(1), s.batch * s.heads * s.length);
  set_inputs<T>(view, a);
  a.lse = view.out<float>(1);
  if (is_block(view)) {
    if (view.reads() < 4 && view.integer("hop") != 0)
      throw Failure(PRUN_EINVAL, "attention_block: only hop 0 has no out and lse of hops before");
    a.out_f32 = view.out<float>(0), a.out_before = before(view, 2), a.lse_before = before(view, 3);
  } else {
    a.out = view.out<T>(0);
  }
  a.sizes.vector = heads_on<T>(16, s, {a.q.data, a.k.data, a.v.data});
  a.sizes.pairs = heads_on<T>(2 * sizeof(T), s, {a.out});
  return a;
}

template <class T>
AttentionBackward<T> backward_of(const OpView& view) {
  AttentionBackward<T> a{};
  a.sizes = sizes_of(view);
  const AttentionSizes& s = a.sizes;
  const size_t first = is_block(view) ? 2 : 1;  // the reads from here on are out, dout, lse
  const int64_t width = int64_t{s.heads} * s.head, shared = int64_t{s.kv_heads} * s.head, all = width + 2 * shared;
  for (const size_t i : {first, first + 1}) view.expect_count(view.read(i), s.batch * s.length * width);
  view.expect_count(view.read(first + 2), s.batch * s.heads * s.length);
  set_inputs<T>(view, a);
  a.out = heads_at(view.in<T>(first), width, s.length);
  a.dout = heads_at(view.in<T>(first + 1), width, s.length);
  a.lse = view.in<float>(first + 2);
  if (is_block(view)) {
    view.expect_count(view.write(0), s.batch * s.length * width);
    view.expect_count(view.write(1), s.batch * s.length * 2 * shared);
    a.dq = {heads_at<T>(nullptr, width, s.length), view.out<float>(0)};
    a.dk = {heads_at<T>(nullptr, 2 * shared, s.length), view.out<float>(1)};
    a.dv = {a.dk.heads, a.dk.data_f32 + shared};
    a.dq_before = before(view, 5);
  } else {
    view.expect_count(view.write(0), s.batch * s.length * all);
    T* dqkv = view.out<T>(0);
    a.dq = {heads_at(dqkv, all, s.length), nullptr};
    a.dk = {heads_at(dqkv + width, all, s.length), nullptr};
    a.dv = {heads_at(dqkv + width + shared, all, s.length), nullptr};
  }
  a.sizes.vector = heads_on<T>(16, s, {a.q.data, a.k.data, a.v.data, a.dout.data});
  a.sizes.pairs = heads_on<T>(2 * sizeof(T), s, {a.dq.heads.data});
  return a;
}

std::unique_ptr<Kernel> make_forward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    const AttentionForward<T> a = forward_of<T>(view);
    if constexpr (std::is_same_v<T, bf16>)
      if (auto kernel = cudnn_attention_forward(view, a)) return kernel;
    return own_attention_forward(a);
  });
}

std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    AttentionBackward<T> a = backward_of<T>(view);
    if constexpr (std::is_same_v<T, bf16>)
      if (auto kernel = cudnn_attention_backward(view, a)) return kernel;
    const Scratch memory = scratch(view, attention_dots_bytes(a.sizes));
    a.dots = static_cast<float*>(memory.data);
    return kernel_of([own = own_attention_backward(a), memory](cudaStream_t stream) { own->run(stream); });
  });
}

// Scratch for cuDNN is reserved unless the options rule it out, because this is called where the program is compiled,
// and only the machine that runs it can look for the library.
bool may_be_cudnn(const OpView& view, const AttentionSizes& s) {
  return view.options().cudnn && view.read(0).dtype == PRUN_BF16 && cudnn_takes(s);
}

size_t forward_workspace(const OpView& view) {
  const AttentionSizes s = sizes_of(view);
  if (!may_be_cudnn(view, s)) return 0;
  const bool merges = is_block(view) && view.reads() > 3;
  return kCudnnForwardBytes + (merges ? cudnn_hop_forward_bytes(s) : 0);
}

size_t backward_workspace(const OpView& view) {
  const AttentionSizes s = sizes_of(view);
  const size_t bytes = attention_dots_bytes(s), slice = cudnn_backward_slice(s, view.options()).bytes;
  if (!may_be_cudnn(view, s) || slice == 0) return bytes;
  return bytes + slice + (is_block(view) ? cudnn_hop_backward_bytes(s) : 0);
}

std::string refuses(const OpView& view) {
  const int dtype = view.read(0).dtype;
  if (dtype != PRUN_F32 && dtype != PRUN_BF16)
    return fmt::format("{} has kernels here for f32 and bf16 only", view.kind());
  const AttentionSizes s = sizes_of(view);
  if (s.head > kMostHead)
    return fmt::format("{}: a head has {} elements, at most {} here", view.kind(), s.head, kMostHead);
  if (s.length > kMostLength) return fmt::format("{}: {} tokens, at most {} here", view.kind(), s.length, kMostLength);
  return "";
}

const KernelFamily kFamily = {
    {"attention", make_forward, forward_workspace, refuses},
    {"attention_grad", make_backward, backward_workspace, refuses},
    {"attention_block", make_forward, forward_workspace, refuses},
    {"attention_block_grad", make_backward, backward_workspace, refuses},
};

}  // namespace
}  // namespace prun::cuda
