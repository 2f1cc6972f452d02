#include "attention_cudnn.h"

#include "context.h"

#ifdef PRUN_CUDA_CUDNN
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <tuple>

#include "attention_graphs.h"
#include "stream.h"
#endif

namespace prun::cuda {

#ifdef PRUN_CUDA_CUDNN
namespace {

// The slice of the sizes that a graph is for.
CudnnAttentionShape shape_of(const AttentionSizes& s, int64_t batch, int64_t kv_heads) {
  return {batch, s.length, kv_heads * s.group(), kv_heads, s.head, s.heads, s.kv_heads, s.sight.more[0] != 0};
}

// What an op enqueues of one plan.
struct Calls {
  Scratch memory;
  std::vector<CudnnCall> all;
};
using MakeCalls = std::function<Calls(const std::shared_ptr<const CudnnPlan>&)>;

// Returns a plan, or null where cuDNN has none that it also launches. Kernels of the same shape share it while one of
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
  const std::string what =
      fmt::format("{} of {} samples, {} tokens, {} heads ({} of keys) of {}", gradient ? "attention_grad" : "attention",
                  shape.batch, shape.length, shape.heads, shape.kv_heads, shape.head);
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

// The graphs promise 16 bytes of every tensor in bf16 (cudnn_plan.cc). AttentionSizes says it of heads that are only
// read for the kernels of ours; `others` are the rest. As heads are multiples of 16 bytes, all begin as the first does.
bool suits(const OpView& view, const AttentionSizes& s, std::initializer_list<const void*> others) {
  return view.kind().find("block") == std::string_view::npos && s.vector && s.head <= 128 &&
         std::all_of(others.begin(), others.end(),
                     [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }) &&
         view.context().cudnn() != nullptr;
}

}  // namespace

std::unique_ptr<Kernel> cudnn_attention_forward(const OpView& view, const AttentionForward<bf16>& a) {
  if (!suits(view, a.sizes, {a.out})) return nullptr;
  const auto make = [&](const std::shared_ptr<const CudnnPlan>& plan) {
    const auto ptr = [](const auto* at) { return const_cast<void*>(static_cast<const void*>(at)); };
    Calls calls{scratch(view, plan->workspace_bytes()), {}};
    calls.all.emplace_back(plan, std::vector{ptr(a.q.data), ptr(a.k.data), ptr(a.v.data), ptr(a.out), ptr(a.lse)},
                           calls.memory.data);
    return calls;
  };
  const auto plan = plan_of(view.context(), shape_of(a.sizes, a.sizes.batch, a.sizes.kv_heads), false, make);
  if (plan == nullptr) return nullptr;
  return kernel_of([calls = make(plan), handle = view.context().cudnn()](cudaStream_t stream) {
    for (const CudnnCall& call : calls.all) call.enqueue(handle, stream);
  });
}

std::unique_ptr<Kernel> cudnn_attention_backward(const OpView& view, const AttentionBackward<bf16>& a) {
  const AttentionSizes& s = a.sizes;
  const bool deterministic = view.options().deterministic;
  const CudnnSlice slice = cudnn_backward_slice(s, view.options());
  if (slice.batch == 0 || !suits(view, s, {a.out.data, a.dq.heads.data, a.dk.heads.data, a.dv.heads.data}))
    return nullptr;
  // Up to Hopper a graph that writes dq at once makes cuDNN keep the gradients of scores; later engines take it, and
  // add.
  if (deterministic && view.context().capability() >= 100) return nullptr;
  // In scratch: dots, dq's sums, cuDNN's workspace.
  const size_t sums_at = attention_dots_bytes(s), workspace_at = sums_at + slice.sums_bytes;
  const auto make = [&](const std::shared_ptr<const CudnnPlan>& plan) {
    Calls calls{scratch(view, workspace_at + plan->workspace_bytes()), {}};
    char* const memory = static_cast<char*>(calls.memory.data);
    for (int64_t b = 0; b < s.batch; b += slice.batch)
      for (int64_t shared = 0; shared < s.kv_heads; shared += slice.kv_heads) {
        const int64_t head = shared * s.group(), row = (b * s.heads + head) * s.length;
        const auto ptr = [&](const auto& heads, int64_t h) {
          return const_cast<void*>(static_cast<const void*>(heads.head(b, h, s.head)));
        };
        std::vector<void*> pointers = {ptr(a.q, head),
                                       ptr(a.k, shared),
                                       ptr(a.v, shared),
                                       ptr(a.out, head),
                                       ptr(a.dout, head),
                                       const_cast<float*>(a.lse) + row,
                                       reinterpret_cast<float*>(memory) + row,
                                       ptr(a.dq.heads, head),
                                       ptr(a.dk.heads, shared),
                                       ptr(a.dv.heads, shared)};
        if (!deterministic) pointers.push_back(memory + sums_at);
        calls.all.emplace_back(plan, std::move(pointers), memory + workspace_at);
      }
    return calls;
  };
  const auto plan = plan_of(view.context(), shape_of(s, slice.batch, slice.kv_heads), true, make);
  if (plan == nullptr) return nullptr;
  return kernel_of([calls = make(plan), sums_at, zeros = slice.sums_bytes,
                    handle = view.context().cudnn()](cudaStream_t stream) {
    for (const CudnnCall& call : calls.all) {
      if (zeros > 0)
        check(cudaMemsetAsync(static_cast<char*>(calls.memory.data) + sums_at, 0, zeros, stream), "cudaMemsetAsync");
      call.enqueue(handle, stream);
    }
  });
}

#else

std::unique_ptr<Kernel> cudnn_attention_forward(const OpView&, const AttentionForward<bf16>&) { return nullptr; }
std::unique_ptr<Kernel> cudnn_attention_backward(const OpView&, const AttentionBackward<bf16>&) { return nullptr; }

#endif

}  // namespace prun::cuda
