#include "checkpoint/base.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "base/sha256.h"
#include "checkpoint/folder.h"
#include "checkpoint/linear_weights.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {
namespace {

constexpr size_t kShownDigits = 12;  // of a digest, in messages

// Returns values by our dims in the order of the file's dims, so that a transposed view has the same digest.
Shape in_file_order(const WeightPiece& piece, const Shape& values) {
  Shape ordered;
  for (const int d : piece.order) ordered.push_back(values[d]);
  return ordered;
}

std::string digest_of(const std::string& name, const Weight& weight, std::vector<std::byte>& buffer) {
  constexpr int64_t kRun = int64_t{1} << 20;
  std::vector<std::pair<Shape, const WeightPiece*>> pieces;
  for (const WeightPiece& piece : weight.pieces) pieces.emplace_back(in_file_order(piece, piece.offset), &piece);
  std::ranges::sort(pieces, {}, [](const auto& one) { return one.first; });
  Sha256 sum;
  const auto add = [&](const std::string& text) { sum.add(text.data(), text.size()); };
  add(name);
  if (weight.adapter)
    for (const std::string& one : {weight.adapter->a, weight.adapter->b})
      add(fmt::format("{} {}", weight.adapter->scale,
                      digest_of(one, weight.adapter->weights->tensors.at(one), buffer)));
  buffer.resize(kRun);
  for (const auto& [offset, piece] : pieces) {
    add(fmt::format("|{}{}{}|", dtype_name(piece->dtype), shape_text(offset),
                    shape_text(in_file_order(*piece, piece->shape))));
    const int64_t all = element_count(piece->shape) * dtype_bytes(piece->dtype);
    for (int64_t at = 0; at < all; at += kRun) {
      const int64_t bytes = std::min(kRun, all - at);
      piece->file->read(piece->at + at, bytes, buffer.data());
      sum.add(buffer.data(), bytes);
    }
  }
  return sum.hex();
}

std::set<std::string> linear_of(const Adapters& adapters) { return {adapters.linear.begin(), adapters.linear.end()}; }

Weights open_base(const std::string& folder, const Adapters& adapters, const std::string& base) {
  const std::string path = base.empty() ? adapters.base : base;
  if (!std::filesystem::exists(path))
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} holds the adapters of the base {}, and there is no such folder; --base DIR says where "
                            "the base is",
                            folder, path));
  Weights weights = open_weights(path);
  take_linear_weights(weights, linear_of(adapters));
  for (auto& [name, weight] : weights.tensors)
    weight.linear = std::ranges::find(adapters.linear, name) != adapters.linear.end();
  return weights;
}

// Adds the tensors of the base, and its model if the plan's was a function.
void put_above(Weights& weights, Weights base) {
  weights.tensors.merge(base.tensors);
  if (weights.model.name.empty()) weights.model = std::move(base.model);
}

// Returns the name of the layer's weight if `name` is its adapter's A; otherwise "".
std::string adapted_weight(const std::string& name) {
  const std::string end = kAdapterA;
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) + ".weight" : "";
}

bool is_adapter(const std::string& name) { return name.ends_with(kAdapterA) || name.ends_with(kAdapterB); }

}  // namespace

std::string base_digest(const Weights& base) {
  std::vector<const std::pair<const std::string, Weight>*> tensors;
  for (const auto& tensor : base.tensors) tensors.push_back(&tensor);
  std::vector<std::string> digests(tensors.size());
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&] {
    std::vector<std::byte> buffer;
    try {
      for (size_t i = 0; (i = next++) < tensors.size();)
        digests[i] = digest_of(tensors[i]->first, tensors[i]->second, buffer);
    } catch (...) {
      const std::lock_guard lock(failing);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < usable_cores(); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (failure != nullptr) std::rethrow_exception(failure);
  Sha256 all;
  for (const std::string& digest : digests) all.add(digest.data(), digest.size());
  return all.hex();
}

void require_base(const std::string& folder, const Adapters& adapters, const std::string& digest,
                  const std::string& base) {
  if (digest == adapters.base_sha256) return;
  throw Error(
      Exit::checkpoint_invalid,
      fmt::format("{} holds the adapters of another base: of {}, whose weights have the SHA-256 {}.., and those "
                  "of {} have {}..; --base DIR says where the base is",
                  folder, adapters.base, adapters.base_sha256.substr(0, kShownDigits), base,
                  digest.substr(0, kShownDigits)));
}

bool holds_adapters(const std::string& path) {
  return std::filesystem::exists(path + "/index.json") && read_index(path).adapters.any();
}

Weights open_with_base(const std::string& folder, Take take, const std::string& base) {
  Weights weights = open_checkpoint(folder, take);
  const Adapters adapters = read_index(folder).adapters;
  if (adapters.has_base()) put_above(weights, open_base(folder, adapters, base));
  return weights;
}

Weights open_merged(const std::string& folder, const std::string& base, bool verified, Take take) {
  Weights weights = open_checkpoint(folder, take);
  const Adapters adapters = read_index(folder).adapters;
  if (!adapters.any()) return weights;
  if (adapters.has_base()) {
    Weights below = open_base(folder, adapters, base);
    if (verified) require_base(folder, adapters, base_digest(below), below.folder);
    put_above(weights, std::move(below));
  }
  const auto own = std::make_shared<const Weights>(weights);
  for (const auto& [name, weight] : own->tensors) {
    const std::string target = adapted_weight(name);
    if (target.empty()) continue;
    const auto found = weights.tensors.find(target);
    if (found == weights.tensors.end())
      throw Error(Exit::checkpoint_invalid, fmt::format("{} adapts {}, which {} lacks", folder, target, adapters.base));
    found->second.adapter = {own, name, name.substr(0, name.size() - std::string(kAdapterA).size()) + kAdapterB,
                             adapters.scale()};
  }
  std::erase_if(weights.tensors, [](const auto& tensor) { return is_adapter(tensor.first); });
  return weights;
}

}  // namespace prun::checkpoint
