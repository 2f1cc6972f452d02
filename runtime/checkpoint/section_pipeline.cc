#include "checkpoint/section_pipeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "ir/types.h"

namespace prun::checkpoint {
namespace {
constexpr int64_t kSectionBytes = int64_t{4} << 20;
}

OutputFile::OutputFile(const std::string& path, int64_t bytes) : path_(path), bytes_(bytes) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  fd_ = open(path.c_str(), flags | O_DIRECT, 0644);
  if (fd_ < 0 && errno == EINVAL) {
    direct_ = false;
    fd_ = open(path.c_str(), flags, 0644);
  }
  if (fd_ < 0) throw write_failed(path, errno);
  int failed = 0;
  while ((failed = fallocate(fd_, 0, 0, bytes)) != 0 && errno == EINTR) continue;
  if (failed != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    const int code = errno;
    close(fd_);
    throw write_failed(path, code);
  }
}

OutputFile::~OutputFile() { close(fd_); }

void OutputFile::write_through_cache() {
  direct_ = false;
  if (const int flags = fcntl(fd_, F_GETFL); flags >= 0) fcntl(fd_, F_SETFL, flags & ~O_DIRECT);
}

void OutputFile::write(std::byte* data, int64_t bytes) {
  int64_t left = bytes;
  while (left > 0) {
    int64_t more = left;
    if (direct_ && left % kAlign != 0) {
      more = round_up(left, kAlign);
      std::memset(data + left, 0, more - left);
    }
    const ssize_t n = pwrite(fd_, data, more, written_);
    if (n < 0 && errno == EINTR) continue;
    if (direct_ && ((n < 0 && errno == EINVAL) || (n > 0 && n < more && n % kAlign != 0))) {
      write_through_cache();
      if (n < 0) continue;
    }
    if (n <= 0) throw write_failed(path_, n < 0 ? errno : EIO);
    // Buffered writes: starts writeback at once, overlapped with the next section.
    if (!direct_) sync_file_range(fd_, written_, n, SYNC_FILE_RANGE_WRITE);
    data += n;
    left -= n;
    written_ += n;
  }
}

void OutputFile::sync() {
  if (written_ > bytes_ && ftruncate(fd_, bytes_) != 0) throw write_failed(path_, errno);
  if (fsync(fd_) != 0) throw write_failed(path_, errno);
}

SectionPipeline::SectionPipeline(OutputFile& file, int64_t bytes, bool sums)
    : file_(file), section_bytes_(std::min(kSectionBytes, round_up(bytes, OutputFile::kAlign))), sums_wanted_(sums) {
  const bool one = bytes <= section_bytes_;
  for (int i = 0; i < (one ? 1 : kSections); ++i) {
    ring_[i].data.reset(static_cast<std::byte*>(std::aligned_alloc(OutputFile::kAlign, section_bytes_)));
    if (ring_[i].data == nullptr) throw std::bad_alloc();
  }
  if (!one) writing_ = std::thread([this] { write_sections(); });
}

SectionPipeline::~SectionPipeline() {
  {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  if (writing_.joinable()) writing_.join();
}

void SectionPipeline::write_sections() {
  MutexLock lock(mutex_);
  for (;;) {
    while (written_ == passed_ && !over_) lock.wait(changed_);
    if (over_) return;
    Section& section = ring_[written_ % kSections];
    lock.unlock();
    std::exception_ptr failure;
    try {
      file_.write(section.data.get(), section.bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    ++written_;
    failure_ = failure;
    changed_.notify_all();
    if (failure != nullptr) return;
  }
}

std::byte* SectionPipeline::room(int64_t* bytes) {
  if (filling_ == nullptr) {
    MutexLock lock(mutex_);
    while (failure_ == nullptr && passed_ - written_ >= kSections) lock.wait(changed_);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    filling_ = &ring_[writing_.joinable() ? passed_ % kSections : 0];
    filling_->bytes = 0;
  }
  *bytes = section_bytes_ - filling_->bytes;
  return filling_->data.get() + filling_->bytes;
}

void SectionPipeline::add(int64_t bytes) {
  filling_->bytes += bytes;
  if (filling_->bytes == section_bytes_) pass();
}

void SectionPipeline::add_of_piece(int64_t bytes, bool last) {
  if (sums_wanted_) {
    if (sum_ == nullptr) sum_ = std::make_unique<Sha256>();
    sum_->add(filling_->data.get() + filling_->bytes, bytes);
    if (last) sums_.push_back(std::exchange(sum_, nullptr)->hex());
  }
  add(bytes);
}

void SectionPipeline::pass() {
  Section& section = *std::exchange(filling_, nullptr);
  if (!writing_.joinable()) return file_.write(section.data.get(), section.bytes);
  MutexLock lock(mutex_);
  ++passed_;
  changed_.notify_all();
}

std::vector<std::string> SectionPipeline::finish() {
  if (filling_ != nullptr && filling_->bytes > 0) pass();
  MutexLock lock(mutex_);
  while (failure_ == nullptr && written_ < passed_) lock.wait(changed_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return std::move(sums_);
}

}  // namespace prun::checkpoint
