#include "checkpoint/write_files.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace prun::checkpoint {
namespace {

constexpr int64_t kShort = int64_t{16} << 20;  // smallest size in bytes of a further file

int64_t bytes_of(const PieceToWrite& piece) { return element_count(piece.shape) * dtype_bytes(piece.dtype); }

}  // namespace

std::vector<FileToWrite> divided(FileToWrite file, int parts) {
  int64_t all = 0, before = 0;
  for (const PieceToWrite& piece : file.pieces) all += bytes_of(piece);
  const int64_t count = std::clamp<int64_t>(all / kShort, 1, parts);
  std::vector<FileToWrite> files(count);
  for (PieceToWrite& piece : file.pieces) {
    const int64_t bytes = bytes_of(piece), middle = before + bytes / 2;
    before += bytes;
    files[std::min(count - 1, middle * count / std::max<int64_t>(1, all))].pieces.push_back(std::move(piece));
  }
  std::erase_if(files, [](const FileToWrite& each) { return each.pieces.empty(); });
  return files;
}

void write_files(const std::string& folder, const std::vector<FileToWrite>& files, int threads,
                 const std::function<bool()>& cancelled, std::map<std::string, SavedTensor>& tensors) {
  std::vector<std::vector<std::string>> sums(files.size());
  std::atomic<size_t> next = 0;
  std::atomic<bool> over = false;
  std::mutex failing;
  std::exception_ptr failure;
  const auto work = [&] {
    for (size_t i = 0; (i = next++) < files.size() && !over;) {
      try {
        sums[i] = write_safetensors(folder + "/" + files[i].name, files[i].pieces,
                                    [&] { return over.load() || cancelled(); });
      } catch (...) {
        const std::lock_guard lock(failing);
        if (failure == nullptr) failure = std::current_exception();
        over = true;
      }
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(files.size(), static_cast<size_t>(threads)); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (failure != nullptr) std::rethrow_exception(failure);
  for (size_t i = 0; i < files.size(); ++i)
    for (size_t p = 0; p < files[i].pieces.size(); ++p) {
      const PieceToWrite& piece = files[i].pieces[p];
      SavedTensor& saved = tensors[piece.name];
      saved.dtype = safetensors_dtype(piece.dtype);
      saved.pieces.push_back({files[i].name, piece.offset, piece.shape, sums[i][p]});
    }
}

}  // namespace prun::checkpoint
