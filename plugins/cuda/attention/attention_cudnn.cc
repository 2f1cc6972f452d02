#include "attention_cudnn.h"

#include "cuda/device/context.h"

#ifdef PRUN_CUDA_CUDNN
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "attention_graphs.h"
#include "attention_hops.h"
#include "cuda/device/stream.h"
#endif

namespace prun::cuda {

#ifdef PRUN_CUDA_CUDNN
namespace {

// Queries first..first + queries - 1, each of which attends to keys 0..keys - 1; causal: the i-th one to 0..i.
struct Rectangle {
  int first, queries, keys;
  bool causal;
};

// Returns nothing if no query attends to any key, or if the mask has another form.
std::optional<Rectangle> rectangle_of(const AttentionSizes& s) {
  const Mask& mask = s.mask;
  const bool two = mask.chunk < s.length;
  if (mask.more[0] != 0) {
    const bool diagonal = s.keys == s.length && mask.seen[0] == 1 && mask.more[0] == 1 &&
                          (!two || (mask.seen[1] == mask.chunk + 1 && mask.more[1] == 1));
    return diagonal ? std::optional(Rectangle{0, s.length, s.length, true}) : std::nullopt;
  }
  if (two && mask.more[1] != 0) return std::nullopt;
  const bool later_only = two && mask.seen[0] == 0, alike = !two || mask.seen[0] == mask.seen[1];
  const int keys = later_only ? mask.seen[1] : mask.seen[0], first = later_only ? mask.chunk : 0;
  if (keys == 0 || (!later_only && !alike)) return std::nullopt;
  return Rectangle{first, s.length - first, keys, false};
}

template <class T>
CudnnStrides strides(const Heads<T>& heads) {
  return {heads.row, heads.sample};
}

// Returns the shape of a slice of the batch and heads; the caller fills in the strides.
CudnnAttentionShape shape_of(const AttentionSizes& s, const Rectangle& r, int64_t batch, int64_t kv_heads) {
  CudnnAttentionShape shape{};
  shape.batch = batch, shape.queries = r.queries, shape.keys = r.keys;
  shape.heads = kv_heads * s.group(), shape.kv_heads = kv_heads, shape.head = s.head, shape.value = s.value;
  shape.scale = s.scale, shape.causal = r.causal, shape.window = s.window, shape.cap = s.cap;
  return shape;
}

void* any(const void* data) { return const_cast<void*>(data); }

// Returns the addresses of a gradient's tensors, from sample `b` and head of keys `shared` on.
std::vector<void*> gradient_pointers(const AttentionBackward<bf16>& a, const Rectangle& r, const float* lse,
                                     float* dots, int64_t b, int64_t shared) {
  const AttentionSizes& s = a.sizes;
  const int64_t head = shared * s.group(), rows = (b * s.heads + head) * r.queries;
  const auto queries = [&](const auto& of, int size) { return any(of.head(b, head, size) + r.first * of.row); };
  const auto keys = [&](const auto& of, int size) { return any(of.head(b, shared, size)); };
  return {queries(a.q, s.head),     keys(a.k, s.head),        keys(a.v, s.value), queries(a.out, s.value),
          queries(a.dout, s.value), any(lse + rows),          any(dots + rows),   any(a.dq.heads.head(b, head, s.head)),
          keys(a.dk.heads, s.head), keys(a.dv.heads, s.value)};
}

// The layout of one call's scratch, one part after the other.
class Parts {
 public:
  size_t add(size_t bytes) {
    const size_t at = bytes_;
    bytes_ += (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

template <class T>
T* at(const Scratch& memory, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(memory.data) + offset);
}

// The calls of one plan that an op enqueues, and their scratch.
struct Calls {
  Scratch memory;
  std::vector<CudnnCall> all;
};
using MakeCalls = std::function<Calls(const std::shared_ptr<const CudnnPlan>&)>;

// Returns a plan, or null if cuDNN has none that it also launches. Kernels of the same shape share it as long as one of
// them lives.
std::shared_ptr<const CudnnPlan> plan_of(Context& context, const CudnnAttentionShape& shape, bool gradient,
                                         const MakeCalls& make) {
  const bool deterministic = context.options().deterministic;
  using Key = std::tuple<int, CudnnAttentionShape, bool, bool>;
  static std::mutex mutex;
  static std::map<Key, std::weak_ptr<const CudnnPlan>> plans;
  static std::map<Key, bool> refused;
  const std::lock_guard lock(mutex);
  const Key key{context.index(), shape, gradient, deterministic};
  if (auto known = plans[key].lock()) return known;
  if (refused[key]) return nullptr;
  const std::string what = fmt::format("{} of {} samples, {} queries, {} keys, {} heads ({} of keys) of {}",
                                       gradient ? "attention_grad" : "attention", shape.batch, shape.queries,
                                       shape.keys, shape.heads, shape.kv_heads, shape.head);
  try {
    const CudnnGraph graph = gradient ? attention_gradient_graph(shape, !deterministic) : attention_graph(shape);
    const auto launch = [&](const CudnnPlan& plan) {
      const Calls calls = make(std::make_shared<const CudnnPlan>(plan));
      rehearse(context, [&](cudaStream_t stream) { calls.all.front().enqueue(context.cudnn(), stream); });
    };
    auto plan = std::make_shared<const CudnnPlan>(graph.plan({context.cudnn(), nullptr}, deterministic, launch));
    context.log(0, fmt::format("cuda: {}: by cuDNN, workspace {} bytes", what, plan->workspace_bytes()));
    plans[key] = plan;
    return plan;
  } catch (const Failure& failure) {
    if (failure.status == PRUN_ENOMEM) throw;
    context.log(0, fmt::format("cuda: {}: by prun's kernels: {}", what, failure.what()));
    refused[key] = true;
    return nullptr;
  }
}

// Returns whether the loaded version computes these sizes correctly, by the limits that cuDNN's frontend checks.
bool known_good(const Context& context, const AttentionSizes& s, bool gradient) {
  const size_t version = cudnnGetVersion();
  if (version == 91000 || version == 91001) return false;  // wrong results in bf16
  if (s.window > 0 && version < 91002) return false;
  if (s.head <= 128 && s.value == s.head && s.cap == 0) return true;
  return version >= 91300 && (!gradient || std::max(s.head, s.value) <= 128 || context.capability() / 10 == 9);
}

// The graphs require 16-byte alignment of every bf16 tensor (cudnn_plan.cc). AttentionSizes::vector covers the heads
// that are only read; `others` are the remaining tensors. Heads are multiples of 16 bytes, so the first one decides for
// all.
bool suits(const OpView& view, const AttentionSizes& s, bool gradient, std::initializer_list<const void*> others) {
  return s.vector && cudnn_takes(s) &&
         std::all_of(others.begin(), others.end(),
                     [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }) &&
         view.context().cudnn() != nullptr && known_good(view.context(), s, gradient);
}

}  // namespace

std::unique_ptr<Kernel> cudnn_attention_forward(const OpView& view, const AttentionForward<bf16>& a) {
  const AttentionSizes& s = a.sizes;
  const std::optional<Rectangle> r = rectangle_of(s);
  const bool merges = a.out_before != nullptr;
  if (!r || (!merges && r->queries < s.length) || !suits(view, s, false, {a.out, a.out_f32, a.out_before}))
    return nullptr;
  const int64_t width = int64_t{s.heads} * s.value;
  CudnnAttentionShape shape = shape_of(s, *r, s.batch, s.kv_heads);
  shape.q = strides(a.q), shape.k = strides(a.k), shape.v = strides(a.v), shape.out = {width, r->queries * width};
  shape.f32_out = a.out_f32 != nullptr;
  Parts parts;
  const size_t out_at = parts.add(merges ? s.batch * r->queries * width * sizeof(float) : 0);
  const size_t lse_at = parts.add(merges ? s.batch * s.heads * r->queries * sizeof(float) : 0);
  const auto make = [&](const std::shared_ptr<const CudnnPlan>& plan) {
    Calls calls{scratch(view, parts.bytes() + plan->workspace_bytes()), {}};
    const Scratch& memory = calls.memory;
    void* const out = merges ? at<void>(memory, out_at) : a.out_f32 != nullptr ? any(a.out_f32) : any(a.out);
    void* const lse = merges ? at<void>(memory, lse_at) : any(a.lse);
    calls.all.emplace_back(plan,
                           std::vector{any(a.q.data + r->first * a.q.row), any(a.k.data), any(a.v.data), out, lse},
                           at<void>(memory, parts.bytes()));
    return calls;
  };
  const auto plan = plan_of(view.context(), shape, false, make);
  if (plan == nullptr) return nullptr;
  Calls calls = make(plan);
  HopOutputs hop{{s.batch, s.length, r->first, r->queries}, s.heads, s.head};
  if (merges) {
    hop.part = at<float>(calls.memory, out_at), hop.part_lse = at<float>(calls.memory, lse_at);
    hop.out_before = a.out_before, hop.lse_before = a.lse_before, hop.out = a.out_f32, hop.lse = a.lse;
  }
  return kernel_of([calls = std::move(calls), hop, merges, handle = view.context().cudnn()](cudaStream_t stream) {
    for (const CudnnCall& call : calls.all) call.enqueue(handle, stream);
    if (merges) merge_hop(stream, hop);
  });
}

std::unique_ptr<Kernel> cudnn_attention_backward(const OpView& view, const AttentionBackward<bf16>& a) {
  const AttentionSizes& s = a.sizes;
  const std::optional<Rectangle> r = rectangle_of(s);
  const bool deterministic = view.options().deterministic, hop = a.dq.data_f32 != nullptr;
  const CudnnSlice slice = cudnn_backward_slice(s, view.options());
  if (!r || slice.batch == 0 ||
      !suits(view, s, true,
             {a.out.data, a.dq.heads.data, a.dk.heads.data, a.dv.heads.data, a.dq.data_f32, a.dk.data_f32,
              a.dv.data_f32, a.dq_before}))
    return nullptr;
  // Up to Hopper, a graph that writes dq directly makes cuDNN store the gradients of scores; later engines accept the
  // graph, but add in any order.
  if (deterministic && view.context().capability() >= 100) return nullptr;
  const int64_t width = int64_t{s.heads} * s.head, shared_width = int64_t{s.kv_heads} * s.head;
  Heads<bf16> dq = a.dq.heads, dk = a.dk.heads, dv = a.dv.heads;
  if (hop) {  // the gradients of a hop are in scratch
    dq = {nullptr, width, r->queries * width};
    dk = dv = {nullptr, 2 * shared_width, r->keys * 2 * shared_width};
  }
  CudnnAttentionShape shape = shape_of(s, *r, slice.batch, slice.kv_heads);
  shape.q = strides(a.q), shape.k = strides(a.k), shape.v = strides(a.v), shape.out = strides(a.out);
  shape.dq = strides(dq), shape.dk = strides(dk), shape.dv = strides(dv);
  // Statistics are contiguous (attention_graphs.h), so the lse of the later half of the queries is copied after dots,
  // which has half the rows, too.
  const int64_t all_rows = s.batch * s.heads * r->queries;
  const bool packs = r->queries < s.length;
  if (packs && 2 * r->queries > s.length) return nullptr;
  Parts parts;
  const size_t dots_at = parts.add(attention_dots_bytes(s)), sums_at = parts.add(slice.sums_bytes);
  const size_t dq_at = parts.add(hop ? s.batch * dq.sample * sizeof(bf16) : 0);
  const size_t dkv_at = parts.add(hop ? s.batch * dk.sample * sizeof(bf16) : 0);
  const auto make = [&](const std::shared_ptr<const CudnnPlan>& plan) {
    Calls calls{scratch(view, parts.bytes() + plan->workspace_bytes()), {}};
    const Scratch& memory = calls.memory;
    AttentionBackward<bf16> to = a;
    float* const dots = at<float>(memory, dots_at);
    if (hop) {
      to.dq.heads = dq, to.dk.heads = dk, to.dv.heads = dv;
      to.dq.heads.data = at<bf16>(memory, dq_at);
      to.dk.heads.data = at<bf16>(memory, dkv_at), to.dv.heads.data = to.dk.heads.data + shared_width;
    }
    for (int64_t b = 0; b < s.batch; b += slice.batch)
      for (int64_t shared = 0; shared < s.kv_heads; shared += slice.kv_heads) {
        std::vector<void*> pointers = gradient_pointers(to, *r, packs ? dots + all_rows : a.lse, dots, b, shared);
        if (!deterministic) pointers.push_back(at<void>(memory, sums_at));
        calls.all.emplace_back(plan, std::move(pointers), at<void>(memory, parts.bytes()));
      }
    return calls;
  };
  const auto plan = plan_of(view.context(), shape, true, make);
  if (plan == nullptr) return nullptr;
  Calls calls = make(plan);
  const HopRows of_queries{s.batch, s.length, r->first, r->queries}, of_keys{s.batch, s.length, 0, r->keys};
  return kernel_of([=, calls = std::move(calls), zeros = slice.sums_bytes, to_q = a.dq.data_f32, to_kv = a.dk.data_f32,
                    before = a.dq_before, all_lse = a.lse, heads = s.heads,
                    handle = view.context().cudnn()](cudaStream_t stream) {
    if (packs) take_hop_rows(stream, of_queries, heads, all_lse, at<float>(calls.memory, dots_at) + all_rows);
    for (const CudnnCall& call : calls.all) {
      if (zeros > 0) check(cudaMemsetAsync(at<void>(calls.memory, sums_at), 0, zeros, stream), "cudaMemsetAsync");
      call.enqueue(handle, stream);
    }
    if (!hop) return;
    add_hop_gradient(stream, of_queries, width, at<bf16>(calls.memory, dq_at), before, to_q);
    add_hop_gradient(stream, of_keys, 2 * shared_width, at<bf16>(calls.memory, dkv_at), nullptr, to_kv);
  });
}

#else

std::unique_ptr<Kernel> cudnn_attention_forward(const OpView&, const AttentionForward<bf16>&) { return nullptr; }
std::unique_ptr<Kernel> cudnn_attention_backward(const OpView&, const AttentionBackward<bf16>&) { return nullptr; }

#endif

}  // namespace prun::cuda
