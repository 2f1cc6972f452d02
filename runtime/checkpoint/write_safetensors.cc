// Tensors with wider elements come first, so that each is aligned to its element size, as in files of the format's own
// writer.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/section_pipeline.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFilledAtOnce = int64_t{1} << 20;  // bytes filled before they are hashed, within the cache

std::vector<size_t> order_of(const std::vector<PieceToWrite>& pieces) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return dtype_bytes(pieces[a].dtype) > dtype_bytes(pieces[b].dtype); });
  return order;
}

// Returns the header preceded by its length; `data_bytes`: size of the data after it.
std::string header_of(const std::vector<PieceToWrite>& pieces, const std::vector<size_t>& order, bool sharded,
                      int64_t* data_bytes) {
  Json header, places = Json::object();
  for (const size_t i : order) places[pieces[i].name] = {{"saved_offsets", pieces[i].offset}};
  header["__metadata__"] = {{"format", "pt"}};
  if (sharded) header["__metadata__"].update({{"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", places.dump()}});
  int64_t at = 0;
  for (const size_t i : order) {
    const PieceToWrite& piece = pieces[i];
    const int64_t end = at + element_count(piece.shape) * dtype_bytes(piece.dtype);
    header[piece.name] = {
        {"dtype", safetensors_dtype(piece.dtype)}, {"shape", piece.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize(round_up(std::ssize(text), 8), ' ');
  const uint64_t length = text.size();  // little-endian, like all supported machines
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  *data_bytes = at;
  return text;
}

void add_header(SectionPipeline& pipeline, std::string_view header) {
  while (!header.empty()) {
    int64_t room = 0;
    std::byte* to = pipeline.room(&room);
    const int64_t n = std::min(room, std::ssize(header));
    std::memcpy(to, header.data(), n);
    pipeline.add(n);
    header.remove_prefix(n);
  }
}

}  // namespace

std::vector<std::string> write_safetensors(const std::string& path, const std::vector<PieceToWrite>& pieces,
                                           const std::function<bool()>& cancelled, bool sharded) {
  const std::vector<size_t> order = order_of(pieces);
  int64_t data_bytes = 0;
  const std::string header = header_of(pieces, order, sharded, &data_bytes);
  const int64_t bytes = std::ssize(header) + data_bytes;
  OutputFile file(path, bytes);
  SectionPipeline pipeline(file, bytes, sharded);
  add_header(pipeline, header);
  for (const size_t i : order) {
    const PieceToWrite& piece = pieces[i];
    const int64_t size = dtype_bytes(piece.dtype), all = element_count(piece.shape);
    int64_t first = 0;
    do {
      if (cancelled()) throw Error(Exit::checkpoint_write, "the job ended while a checkpoint was written");
      int64_t room = 0;
      std::byte* to = pipeline.room(&room);
      const int64_t count = std::min(std::min(room, kFilledAtOnce) / size, all - first);
      piece.fill(to, first, count);
      first += count;
      pipeline.add_of_piece(count * size, first == all);
    } while (first < all);
  }
  const std::vector<std::string> in_order = pipeline.finish();
  std::vector<std::string> sums(in_order.size());
  for (size_t k = 0; k < in_order.size(); ++k) sums[order[k]] = in_order[k];
  file.sync();
  return sums;
}

}  // namespace prun::checkpoint
