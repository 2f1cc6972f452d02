#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"

namespace prun::checkpoint {

namespace {

struct Piece {
  const std::string* name;
  const SavedPiece* saved;
  const WeightPiece* stored;
  int64_t bytes() const { return element_count(stored->shape) * dtype_bytes(stored->dtype); }
};

std::string sum_of(const Piece& piece, std::vector<std::byte>& buffer) {
  constexpr int64_t kRun = int64_t{1} << 20;     // fits the cache
  constexpr int64_t kAhead = int64_t{48} << 20;  // prefetched from the disk, also beyond the end of the piece
  buffer.resize(kRun);
  Sha256 sum;
  const int64_t all = piece.bytes();
  const DataFile& file = *piece.stored->file;
  file.read_ahead(piece.stored->at, kAhead);
  for (int64_t at = 0; at < all; at += kRun) {
    const int64_t bytes = std::min(kRun, all - at), from = piece.stored->at + at;
    file.read_ahead(from + kAhead, kRun);
    file.read(from, bytes, buffer.data());
    sum.add(buffer.data(), bytes);
  }
  return sum.hex();
}

// Values that each rank trained for itself require the same number of ranks.
template <class Refuse>
void require_same_ranks(const SavedTensor& saved, const Program& program, const StateTensor& state,
                        const std::string& folder, const Refuse& refuse) {
  const std::string instead =
      fmt::format("init = prun.init.from {{ path = \"{}\" }} begins with the mean of the weights, at step 0", folder);
  if (state.drift.empty())
    refuse(
        fmt::format("there each of the {} ranks of {} has trained weights of its own (unit:every), and here all "
                    "have the same; {}",
                    saved.shape.front(), saved.drift, instead));
  const int64_t here = saved_shape(program, state).front();
  if (const std::string drift = join(state.drift, " "); drift != saved.drift || here != saved.shape.front())
    refuse(fmt::format("there {} ranks of {} have trained weights of their own (unit:every), and here {} of {}; {}",
                       saved.shape.front(), saved.drift, here, drift, instead));
}

}  // namespace

Reader::Reader(const std::string& folder) : folder_(folder), index_(read_index(folder)) {}

void Reader::require_fit(const Job& job) const {
  const auto refuse = [&](const std::string& what) {
    throw Error(Exit::checkpoint_invalid, fmt::format("the checkpoint {} does not fit this plan: {}", folder_, what));
  };
  const bool trained = std::any_of(index_.tensors.begin(), index_.tensors.end(),
                                   [](const auto& tensor) { return tensor.first.starts_with(kOptimizerPrefix); });
  size_t wanted = 0;
  std::map<std::string, bool> seen;
  for (const Program& program : job.classes)
    for (const StateTensor& state : program.state) {
      if (is_of_base(program, state)) continue;
      wanted += seen.emplace(state.name, true).second ? 1 : 0;
      const auto found = index_.tensors.find(state.name);
      if (!trained && state.name.starts_with(kOptimizerPrefix))
        refuse(
            fmt::format("it has no optimizer state: its weights begin a run anew with init = prun.init.from {{ "
                        "path = \"{}\" }}",
                        folder_));
      if (found == index_.tensors.end())
        refuse(fmt::format("it has no {} (it was written by {})", state.name, index_.plan));
      const SavedTensor& saved = found->second;
      const std::string_view dtype = safetensors_dtype(program.tensors[state.tensor].dtype);
      if (!saved.drift.empty()) require_same_ranks(saved, program, state, folder_, refuse);
      const Shape shape = saved.drift.empty() ? state.shape : saved_shape(program, state);
      if (saved.shape != shape || saved.dtype != dtype)
        refuse(fmt::format("{} is {}{} there and {}{} here", state.name, saved.dtype, shape_text(saved.shape), dtype,
                           shape_text(shape)));
    }
  if (const std::string differs = differing_model(index_.model, job.classes.front().model); !differs.empty())
    refuse(differs);
  if (wanted == index_.tensors.size()) return;
  for (const auto& [name, tensor] : index_.tensors)
    if (!seen.contains(name)) refuse(fmt::format("it has {}, which this plan has not", name));
}

void Reader::verify(Part of, const std::function<void(int64_t, int64_t)>& advance) const {
  const Weights weights = open_checkpoint(folder_, of == Part::state ? Take::state : Take::parameters);
  std::vector<Piece> parts;
  int64_t done = 0, all = 0;
  std::mutex advancing;
  for (const auto& [name, weight] : weights.tensors)
    for (size_t i = 0; i < weight.pieces.size(); ++i)
      parts.push_back({&name, &index_.tensors.at(name).pieces[i], &weight.pieces[i]});
  for (const Piece& part : parts) all += part.bytes();
  // Sorts by the files' order, which is the order on the disk.
  std::sort(parts.begin(), parts.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.saved->file, a.stored->at) < std::pair(b.saved->file, b.stored->at);
  });
  std::atomic<size_t> next = 0, damaged = parts.size();
  std::exception_ptr failure;
  const auto work = [&] {
    std::vector<std::byte> buffer;
    for (size_t i = 0; (i = next++) < parts.size();) {
      bool whole = true;
      try {
        whole = sum_of(parts[i], buffer) == parts[i].saved->sha256;
      } catch (...) {
        const std::lock_guard lock(advancing);
        failure = std::current_exception();
        return;
      }
      if (advance) {
        const std::lock_guard lock(advancing);
        advance(done += parts[i].bytes(), all);
      }
      if (whole) continue;
      for (size_t first = damaged; i < first && !damaged.compare_exchange_weak(first, i);) continue;
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < usable_cores(); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (failure != nullptr) std::rethrow_exception(failure);
  if (damaged == parts.size()) return;
  const Piece& part = parts[damaged];
  throw invalid(folder_ + "/" + part.saved->file,
                fmt::format("the data of {} is damaged: its SHA-256 is not the one that was written", *part.name));
}

}  // namespace prun::checkpoint
