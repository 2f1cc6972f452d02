#include "checkpoint/section_pipeline.h"

#include <algorithm>
#include <new>
#include <utility>

#include "ir/types.h"

namespace prun::checkpoint {
namespace {
constexpr int64_t kSectionBytes = int64_t{4} << 20;
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
