#include "op.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cuda/device/context.h"

namespace prun::cuda {
namespace {

constexpr const char* kDtypeNames[] = {"f64", "f32", "bf16", "f16", "i64", "i32", "i8", "u8"};
constexpr int64_t kDtypeBytes[] = {8, 4, 2, 2, 8, 4, 1, 1};

Tensor tensor_of(const prun_tensor& t) { return {t.ptr, {{t.dims, static_cast<size_t>(t.rank)}}, t.dtype}; }

const char* dtype_name(int dtype) { return dtype >= PRUN_F64 && dtype <= PRUN_U8 ? kDtypeNames[dtype] : "?"; }

}  // namespace

int64_t dtype_bytes(int dtype) { return kDtypeBytes[dtype]; }

void no_kernel_for(int dtype) {
  throw Failure(PRUN_ENOTSUP, fmt::format("there is no kernel for {}", dtype_name(dtype)));
}

int64_t Shape::count() const {
  int64_t n = 1;
  for (const int64_t dim : dims) n *= dim;
  return n;
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.dims, ", ")); }

Options OpView::options() const { return context_ != nullptr ? context_->options() : options_of(op_); }

Tensor OpView::read(size_t i) const {
  if (i >= op_.n_reads)
    throw Failure(PRUN_EINVAL, fmt::format("{} has {} reads, expects {}", kind(), op_.n_reads, i + 1));
  return tensor_of(op_.reads[i]);
}

Tensor OpView::write(size_t i) const {
  if (i >= op_.n_writes)
    throw Failure(PRUN_EINVAL, fmt::format("{} has {} writes, expects {}", kind(), op_.n_writes, i + 1));
  return tensor_of(op_.writes[i]);
}

void* OpView::typed(const Tensor& tensor, int dtype) const {
  if (tensor.dtype != dtype)
    throw Failure(PRUN_EINVAL,
                  fmt::format("{}: a tensor is {}, expected {}", kind(), dtype_name(tensor.dtype), dtype_name(dtype)));
  return tensor.ptr;
}

void OpView::expect_count(const Tensor& tensor, int64_t count) const {
  if (tensor.count() != count)
    throw Failure(PRUN_EINVAL, fmt::format("{}: a tensor has {} elements, {} wanted", kind(), tensor.count(), count));
}

void OpView::expect(bool good, const std::string& otherwise) const {
  if (!good) throw Failure(PRUN_EINVAL, fmt::format("{}: {}", kind(), otherwise));
}

const prun_attr* OpView::find(std::string_view name) const {
  const prun_attr* end = op_.attrs + op_.n_attrs;
  const prun_attr* found = std::find_if(op_.attrs, end, [&](const prun_attr& attr) { return name == attr.name; });
  return found == end ? nullptr : found;
}

int64_t OpView::integer(std::string_view attr, int64_t fallback) const {
  const prun_attr* found = find(attr);
  return found != nullptr ? found->integer : fallback;
}

double OpView::number(std::string_view attr, double fallback) const {
  const prun_attr* found = find(attr);
  if (found == nullptr) return fallback;
  return found->type == PRUN_ATTR_INTEGER ? static_cast<double>(found->integer) : found->number;
}

std::string OpView::text(std::string_view attr, std::string_view fallback) const {
  const prun_attr* found = find(attr);
  return found != nullptr ? found->text : std::string(fallback);
}

std::span<const int64_t> OpView::integers(std::string_view attr) const {
  const prun_attr* found = find(attr);
  return found != nullptr ? std::span(found->integers, found->n) : std::span<const int64_t>();
}

std::vector<double> OpView::numbers(std::string_view attr) const {
  const prun_attr* found = find(attr);
  if (found == nullptr) return {};
  if (found->type == PRUN_ATTR_INTEGERS) return {found->integers, found->integers + found->n};
  return {found->numbers, found->numbers + found->n};
}

Share OpView::share_along(const std::string& axes) const {
  Share share;
  op_.share(op_.mesh, axes.c_str(), &share.index, &share.of);
  return share;
}

TokenPositions OpView::token_positions(int64_t length) const {
  return sdk::token_positions(text("tokens_axis"), integer("chunks", 1), length,
                              [&](const std::string& axes) { return share_along(axes); });
}

namespace {

// Returns the table, a static of a function, so that it exists before the first family of a file.
std::map<std::string_view, KernelEntry>& kernel_table() {
  static std::map<std::string_view, KernelEntry> table;
  return table;
}

// Checks dtypes for kernels without a predicate of their own.
std::string refuses_by_type(const OpView& view) {
  const auto fits = [](int dtype) {
    return dtype == PRUN_F32 || dtype == PRUN_BF16 || dtype == PRUN_I32 || dtype == PRUN_I64;
  };
  for (size_t i = 0; i < view.reads() + view.writes(); ++i) {
    const int dtype = i < view.reads() ? view.read(i).dtype : view.write(i - view.reads()).dtype;
    if (!fits(dtype)) return fmt::format("{} on {} has no kernel here", view.kind(), dtype_name(dtype));
  }
  return "";
}

}  // namespace

KernelFamily::KernelFamily(std::initializer_list<KernelEntry> entries) {
  for (const KernelEntry& entry : entries) kernel_table()[entry.kind] = entry;
}

const KernelEntry* find_entry(std::string_view kind) {
  const auto found = kernel_table().find(kind);
  return found == kernel_table().end() ? nullptr : &found->second;
}

std::string why_refused(const OpView& view) {
  const KernelEntry* entry = find_entry(view.kind());
  if (entry == nullptr) return fmt::format("{} has no kernel here", view.kind());
  return entry->refuses != nullptr ? entry->refuses(view) : refuses_by_type(view);
}

std::shared_ptr<void> device_memory(Context&, size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "cudaMalloc");
  return {data, [](void* ptr) { cudaFree(ptr); }};
}

std::shared_ptr<void> device_table(Context& context, const void* data, size_t bytes) {
  std::shared_ptr<void> table = device_memory(context, bytes);
  check(cudaMemcpy(table.get(), data, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaStreamSynchronize(nullptr),
        "cudaStreamSynchronize");  // a copy from pageable memory may return early
  return table;
}

Scratch scratch(const OpView& view, size_t bytes) {
  Scratch scratch;
  if (bytes == 0) return scratch;
  void* begin = view.workspace();
  size_t room = view.workspace_bytes();
  if (begin != nullptr && std::align(kScratchAlign, bytes, begin, room) != nullptr) {
    scratch.data = begin;
    return scratch;
  }
  scratch.owned = device_memory(view.context(), bytes);
  scratch.data = scratch.owned.get();
  return scratch;
}

}  // namespace prun::cuda
