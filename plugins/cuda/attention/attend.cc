// The op attend and its gradient: operands, limits and kernels. Without a mask and spans, cuDNN may compute it in
// bf16 as it does the op attention (attention_cudnn.h).
#include "attend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>

#include "attention_cudnn.h"

namespace prun::cuda {
namespace {

constexpr int64_t kMostHead = 256, kMostLength = 65535 * 16;  // blocks of at least 16 rows

// The shapes alone.
AttendSizes sizes_of(const OpView& view) {
  const Shape q = view.read(0).shape, k = view.read(1).shape, v = view.read(2).shape;
  const int64_t heads = view.integer("heads", 1), kv_heads = view.integer("kv_heads", heads);
  const std::string axis = view.text("kv_axis");
  const int64_t of_heads = axis.empty() ? heads : view.integer("of_heads", heads);
  const bool fits = q.rank() == 3 && k.rank() == 3 && v.rank() == 3 && heads > 0 && kv_heads > 0 &&
                    of_heads % kv_heads == 0 && q[2] % heads == 0 && k[2] == q[2] / heads * kv_heads &&
                    v[2] % kv_heads == 0;
  if (!fits)
    throw Failure(PRUN_EINVAL, fmt::format("{}: q {}, k {}, v {} with {} heads of {} and {} kv_heads", view.kind(),
                                           shape_text(q), shape_text(k), shape_text(v), heads, of_heads, kv_heads));
  AttendSizes s{};
  s.batch = q[0];
  s.queries = static_cast<int>(q[1]), s.keys = static_cast<int>(k[1]);
  s.heads = static_cast<int>(heads), s.kv_heads = static_cast<int>(kv_heads);
  s.group = static_cast<int>(of_heads / kv_heads);
  s.first_head = axis.empty() ? 0 : static_cast<int>(view.share_along(axis).index * heads);
  s.head = static_cast<int>(q[2] / heads), s.value = static_cast<int>(v[2] / kv_heads);
  s.scale = view.has("scale") ? static_cast<float>(view.number("scale")) : 1.0f / std::sqrt(static_cast<float>(s.head));
  s.cap = static_cast<float>(view.number("softcap", 0));
  s.rules = {s.keys, view.integer("causal") != 0, view.integer("window")};
  return s;
}

// Sets spans and mask, the reads from `rest` on.
void set_rules(const OpView& view, size_t rest, AttendSizes& s) {
  if (view.integer("spans") != 0) {
    view.expect_count(view.read(rest), s.batch * s.queries * 2);
    s.spans = view.in<int32_t>(rest++);
  }
  if (view.integer("masked") == 0) return;
  const Tensor mask = view.read(rest);
  const int64_t row = s.batch * s.keys, rows = row == 0 ? 1 : mask.count() / row;
  s.mask_rows = rows == s.queries ? s.queries : 1;
  view.expect_count(mask, s.mask_rows * row);
  s.mask = mask.ptr, s.mask_dtype = mask.dtype;
}

// Returns whether the sizes and the addresses of all heads of T are multiples of `bytes`.
template <class T>
bool heads_on(size_t bytes, const AttendSizes& s, std::initializer_list<const void*> addresses) {
  return s.head * sizeof(T) % bytes == 0 && s.value * sizeof(T) % bytes == 0 &&
         std::all_of(addresses.begin(), addresses.end(),
                     [bytes](const void* at) { return reinterpret_cast<uintptr_t>(at) % bytes == 0; });
}

template <class T>
Heads<T> heads_at(T* data, int64_t row, int length) {
  return {data, row, row * length};
}

template <class T, class Op>
void set_inputs(const OpView& view, size_t rest, Op& op) {
  op.sizes = sizes_of(view);
  AttendSizes& s = op.sizes;
  set_rules(view, rest, s);
  op.q = heads_at(view.in<T>(0), int64_t{s.heads} * s.head, s.queries);
  op.k = heads_at(view.in<T>(1), int64_t{s.kv_heads} * s.head, s.keys);
  op.v = heads_at(view.in<T>(2), int64_t{s.kv_heads} * s.value, s.keys);
}

// Returns the sizes for cuDNN; nothing if the op has rules that its graphs lack. If ranks share heads of keys, their
// kv_heads are those that the rank's heads of queries use: all, or one.
std::optional<AttentionSizes> cudnn_sizes(const OpView& view, const AttendSizes& s) {
  if (view.integer("spans") != 0 || view.integer("masked") != 0) return std::nullopt;
  const bool causal = s.rules.causal;
  const int window = s.rules.window >= s.keys ? 0 : static_cast<int>(s.rules.window);
  const bool all_keys = s.heads == s.group * s.kv_heads;
  if (view.read(0).dtype != PRUN_BF16 || (causal ? s.queries != s.keys : window != 0) ||
      (!all_keys && s.group % s.heads != 0))
    return std::nullopt;
  const Mask mask{s.queries, {causal ? 1 : s.keys, 0}, {causal ? 1 : 0, 0}};
  const int kv_heads = all_keys ? s.kv_heads : 1;
  return AttentionSizes{s.batch, s.queries, s.heads, kv_heads, s.head,   s.keys, s.value,
                        window,  s.cap,     mask,    s.scale,  s.vector, s.pairs};
}

// Returns the heads from the first one on that the rank uses.
template <class T>
Heads<T> used(const Heads<T>& heads, const AttendSizes& s, int size) {
  return {heads.data + int64_t{s.kv_head(0)} * size, heads.row, heads.sample};
}

std::unique_ptr<Kernel> cudnn_forward(const OpView& view, const AttendForward<bf16>& a) {
  const AttendSizes& s = a.sizes;
  const std::optional<AttentionSizes> sizes = cudnn_sizes(view, s);
  if (!sizes) return nullptr;
  const Heads<const bf16> k = used(a.k, s, s.head), v = used(a.v, s, s.value);
  return cudnn_attention_forward(view, {*sizes, a.q, k, v, a.out, nullptr, nullptr, nullptr, a.lse});
}
std::unique_ptr<Kernel> cudnn_backward(const OpView& view, const AttendBackward<bf16>& a) {
  const AttendSizes& s = a.sizes;
  const std::optional<AttentionSizes> sizes = cudnn_sizes(view, s);
  if (!sizes) return nullptr;
  const Heads<const bf16> k = used(a.k, s, s.head), v = used(a.v, s, s.value);
  const GradientHeads<bf16> dq{a.dq, nullptr}, dk{used(a.dk, s, s.head), nullptr}, dv{used(a.dv, s, s.value), nullptr};
  std::unique_ptr<Kernel> kernel =
      cudnn_attention_backward(view, {*sizes, a.q, k, v, a.out, a.dout, a.lse, nullptr, dq, dk, dv, nullptr});
  if (kernel == nullptr || sizes->kv_heads == s.kv_heads) return kernel;
  const size_t rows = static_cast<size_t>(s.batch * s.keys) * sizeof(bf16);
  return kernel_of([=, own = std::move(kernel), dk = a.dk, dv = a.dv](cudaStream_t stream) {
    check(cudaMemsetAsync(dk.data, 0, rows * static_cast<size_t>(dk.row), stream), "cudaMemsetAsync");
    check(cudaMemsetAsync(dv.data, 0, rows * static_cast<size_t>(dv.row), stream), "cudaMemsetAsync");
    own->run(stream);
  });
}

std::unique_ptr<Kernel> make_forward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    AttendForward<T> a{};
    set_inputs<T>(view, 3, a);
    AttendSizes& s = a.sizes;
    view.expect_count(view.write(0), s.batch * s.queries * s.heads * s.value);
    view.expect_count(view.write(1), s.batch * s.heads * s.queries);
    a.out = view.out<T>(0), a.lse = view.out<float>(1);
    s.vector = heads_on<T>(16, s, {a.q.data, a.k.data, a.v.data});
    s.pairs = heads_on<T>(2 * sizeof(T), s, {a.out});
    if constexpr (std::is_same_v<T, bf16>)
      if (auto kernel = cudnn_forward(view, a)) return kernel;
    return attend_forward(a);
  });
}

std::unique_ptr<Kernel> make_backward(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    AttendBackward<T> a{};
    set_inputs<T>(view, 6, a);
    AttendSizes& s = a.sizes;
    const int64_t width = int64_t{s.heads} * s.value;
    for (const size_t i : {3, 4}) view.expect_count(view.read(i), s.batch * s.queries * width);
    view.expect_count(view.read(5), s.batch * s.heads * s.queries);
    for (const size_t i : {0, 1, 2}) view.expect_count(view.write(i), view.read(i).count());
    a.out = heads_at(view.in<T>(3), width, s.queries), a.dout = heads_at(view.in<T>(4), width, s.queries);
    a.lse = view.in<float>(5);
    a.dq = heads_at(view.out<T>(0), a.q.row, s.queries);
    a.dk = heads_at(view.out<T>(1), a.k.row, s.keys), a.dv = heads_at(view.out<T>(2), a.v.row, s.keys);
    s.vector = heads_on<T>(16, s, {a.q.data, a.k.data, a.v.data, a.dout.data});
    s.pairs = heads_on<T>(2 * sizeof(T), s, {a.dq.data, a.dk.data, a.dv.data});
    if constexpr (std::is_same_v<T, bf16>)
      if (auto kernel = cudnn_backward(view, a)) return kernel;
    const Scratch memory = scratch(view, attend_backward_bytes(s));
    a.dots = static_cast<float*>(memory.data);
    a.tiles = reinterpret_cast<KeySpan*>(static_cast<unsigned char*>(memory.data) + attend_dots_bytes(s));
    return kernel_of([own = attend_backward(a), memory](cudaStream_t stream) { own->run(stream); });
  });
}

// Scratch for cuDNN is reserved unless the options rule it out, as in attention.cc.
std::optional<AttentionSizes> may_be_cudnn(const OpView& view) {
  const std::optional<AttentionSizes> sizes = cudnn_sizes(view, sizes_of(view));
  return view.options().cudnn && sizes && cudnn_takes(*sizes) ? sizes : std::nullopt;
}

size_t forward_workspace(const OpView& view) { return may_be_cudnn(view) ? kCudnnForwardBytes : 0; }

size_t backward_workspace(const OpView& view) {
  const size_t own = attend_backward_bytes(sizes_of(view));
  const std::optional<AttentionSizes> sizes = may_be_cudnn(view);
  if (!sizes) return own;
  const size_t slice = cudnn_backward_slice(*sizes, view.options()).bytes;
  return slice == 0 ? own : std::max(own, attention_dots_bytes(*sizes) + slice);
}

std::string refuses(const OpView& view) {
  const int dtype = view.read(0).dtype;
  if (dtype != PRUN_F32 && dtype != PRUN_BF16)
    return fmt::format("{} has kernels here for f32 and bf16 only", view.kind());
  const AttendSizes s = sizes_of(view);
  if (std::max(s.head, s.value) > kMostHead)
    return fmt::format("{}: a head has {} elements, at most {} here", view.kind(), std::max(s.head, s.value),
                       kMostHead);
  if (std::max(view.read(0).shape[1], view.read(1).shape[1]) > kMostLength)
    return fmt::format("{}: {} queries and {} keys, at most {} here", view.kind(), s.queries, s.keys, kMostLength);
  if (view.integer("masked") == 0) return "";
  const int mask = view.read(view.reads() - 1).dtype;
  if (mask != PRUN_I32 && mask != PRUN_F32 && mask != PRUN_BF16)
    return fmt::format("{} accepts masks here of i32, f32 and bf16 only", view.kind());
  return "";
}

const KernelFamily kFamily = {{"attend", make_forward, forward_workspace, refuses},
                              {"attend_grad", make_backward, backward_workspace, refuses}};

}  // namespace
}  // namespace prun::cuda
