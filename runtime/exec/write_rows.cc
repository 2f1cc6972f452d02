// write_rows: writes the rows of a microbatch's samples to the file of a prediction, each at its sample's place, so
// that ranks share the file without a collective and no rank holds more than its batch. One rank writes each row.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "device/element.h"
#include "device/share.h"
#include "exec/host_ops.h"
#include "exec/prediction_file.h"
#include "ir/data_source.h"

namespace prun {
namespace {

class WriteRows final : public Kernel {
 public:
  WriteRows(const RankMemory& memory, const Op& op, std::string path)
      : memory_(memory),
        path_(std::move(path)),
        source_(memory.program->bodies[memory.body].data),
        rows_(predicted_rows(*memory.program, op)),
        tensor_(memory.program->tensors[op.reads[0]]),
        data_(memory.data(op.reads[0])) {
    const Share share = share_along(memory, op.attrs.text("data_axes"));
    count_ = tensor_.shape[0];
    first_ = (int64_t{op.microbatch < 0 ? 0 : op.microbatch} * share.of + share.index) * count_;
    writes_ = share_along(memory, op.attrs.text("once")).index == 0;
    if (!op.attrs.text("tokens_axis").empty()) positions_.emplace(memory, op.attrs, tensor_.shape.at(1));
  }
  ~WriteRows() override {
    if (fd_ >= 0) close(fd_);
  }

  void run() override {
    if (!writes_) return;
    if (fd_ < 0) fd_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) throw failed();
    const WholeSet set{source_.whole, source_.global_batch};
    const int64_t header = npy_header(rows_, source_.whole).size(), row = rows_.bytes();
    bytes_.resize(positions_ ? row / positions_->share.of : row);
    for (int64_t s = 0; s < count_; ++s) {
      copy_row(s);
      const int64_t at = header + set.sample(memory_.table->eval_batch, first_ + s) * row;
      if (positions_)
        write_chunks(at);
      else
        write_at(at, bytes_);
    }
  }

 private:
  // Copies a sample's rows without the padding of their last dim.
  void copy_row(int64_t s) {
    const int64_t held = tensor_.shape.size() > 1 ? tensor_.shape.back() : 1, kept = rows_.columns();
    const int64_t lines = tensor_.count() / count_ / held;
    for (int64_t line = 0; line < lines; ++line)
      for (int64_t i = 0; i < kept; ++i) {
        const int64_t from = (s * lines + line) * held + i, to = line * kept + i;
        if (rows_.dtype == Dtype::i32)
          reinterpret_cast<int32_t*>(bytes_.data())[to] = static_cast<const int32_t*>(data_)[from];
        else
          store_element(rows_.dtype, bytes_.data(), to, load_element(tensor_.dtype, data_, from));
      }
  }

  // Writes the chunks of the rank's tokens, each at its position.
  void write_chunks(int64_t row) {
    const int64_t token = std::ssize(bytes_) / positions_->length, chunk = positions_->chunk;
    for (int64_t first = 0; first < positions_->length; first += chunk)
      write_at(row + positions_->of(first) * token, std::span(bytes_).subspan(first * token, chunk * token));
  }

  void write_at(int64_t offset, std::span<const std::byte> bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = pwrite(fd_, bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw failed();
      done += static_cast<size_t>(n);
    }
  }

  Error failed() const { return usage_error(fmt::format("cannot write {}: {}", path_, strerror(errno))); }

  RankMemory memory_;
  std::string path_;
  DataSource source_;
  PredictedRows rows_;
  const Tensor& tensor_;
  const void* data_;
  int64_t count_ = 0, first_ = 0;  // samples of the microbatch on this rank; the slot of the first in the batch
  bool writes_ = false;
  int fd_ = -1;
  std::optional<TokenPositions> positions_;  // of the rank's tokens; none = it has all
  std::vector<std::byte> bytes_;             // of the rank's part of a row
};

}  // namespace

PredictedRows predicted_rows(const Program& program, const Op& op) {
  const Tensor& tensor = program.tensors[op.reads[0]];
  PredictedRows rows{tensor.dtype == Dtype::bf16 ? Dtype::f32 : tensor.dtype,
                     Shape(tensor.shape.begin() + 1, tensor.shape.end())};
  if (!op.attrs.text("tokens_axis").empty()) rows.shape.at(0) *= program.mesh.size(op.attrs.text("tokens_axis"));
  if (op.attrs.has("vocab")) rows.shape.back() = op.attrs.integer("vocab");
  return rows;
}

std::string npy_header(const PredictedRows& rows, int64_t samples) {
  std::string shape = fmt::format("{},", samples);
  for (const int64_t dim : rows.shape) shape += fmt::format(" {},", dim);
  if (!rows.shape.empty()) shape.pop_back();
  const char* dtype = rows.dtype == Dtype::f64 ? "<f8" : rows.dtype == Dtype::i32 ? "<i4" : "<f4";
  std::string words = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", dtype, shape);
  constexpr size_t kPrefix = 10, kAlign = 64;
  words.append(kAlign - (kPrefix + words.size() + 1) % kAlign, ' ');
  words += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(words.size() & 0xff);
  header += static_cast<char>(words.size() >> 8);
  return header + words;
}

std::unique_ptr<Kernel> make_write_rows(const RankMemory& memory, const Op& op, const std::string& path) {
  return std::make_unique<WriteRows>(memory, op, path);
}

}  // namespace prun
