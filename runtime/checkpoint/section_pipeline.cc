#include "checkpoint/section_pipeline.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "ir/types.h"

namespace prun::checkpoint {
namespace {
constexpr int64_t kSectionBytes = int64_t{4} << 20;
}

SectionPipeline::SectionPipeline(OutputFile& file, int64_t bytes)
    : file_(file), section_bytes_(std::min(kSectionBytes, round_up(bytes, OutputFile::kAlign))) {
  const bool one = bytes <= section_bytes_;
  for (int i = 0; i < (one ? 1 : kSections); ++i) {
    ring_[i].data.reset(static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(OutputFile::kAlign), static_cast<size_t>(section_bytes_))));
    if (ring_[i].data == nullptr) throw std::bad_alloc();
  }
  if (one) return;
  summing_ = std::thread([this] { work(summed_, [this](Section& section) { sum(section); }); });
  writing_ = std::thread(
      [this] { work(written_, [this](Section& section) { file_.write(section.data.get(), section.bytes); }); });
}

SectionPipeline::~SectionPipeline() {
  {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  if (summing_.joinable()) summing_.join();
  if (writing_.joinable()) writing_.join();
}

// After a failure sections are only counted, so that nobody waits for them.
void SectionPipeline::work(int64_t& done, const std::function<void(Section&)>& use) {
  MutexLock lock(mutex_);
  for (;;) {
    while (done == passed_ && !over_) lock.wait(changed_);
    if (done == passed_ || over_) return;
    Section& section = ring_[done % kSections];
    if (failure_ == nullptr) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        use(section);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure != nullptr && failure_ == nullptr) failure_ = failure;
    }
    ++done;
    changed_.notify_all();
  }
}

void SectionPipeline::sum(const Section& section) {
  for (const Part& part : section.parts) {
    if (sum_ == nullptr) sum_ = std::make_unique<Sha256>();
    sum_->add(section.data.get() + part.begin, static_cast<size_t>(part.bytes));
    if (!part.last) continue;
    sums_.push_back(sum_->hex());
    sum_.reset();
  }
}

std::byte* SectionPipeline::room(int64_t* bytes) {
  if (filling_ == nullptr) {
    MutexLock lock(mutex_);
    while (failure_ == nullptr && passed_ - std::min(summed_, written_) >= kSections) lock.wait(changed_);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    filling_ = &ring_[writing_.joinable() ? passed_ % kSections : 0];
    filling_->bytes = 0;
    filling_->parts.clear();
  }
  *bytes = section_bytes_ - filling_->bytes;
  return filling_->data.get() + filling_->bytes;
}

void SectionPipeline::add(int64_t bytes, bool summed, bool last) {
  if (summed) filling_->parts.push_back({filling_->bytes, bytes, last});
  filling_->bytes += bytes;
  if (filling_->bytes == section_bytes_) pass();
}

void SectionPipeline::pass() {
  Section& section = *filling_;
  filling_ = nullptr;
  if (!writing_.joinable()) {
    sum(section);
    return file_.write(section.data.get(), section.bytes);
  }
  MutexLock lock(mutex_);
  ++passed_;
  changed_.notify_all();
}

std::vector<std::string> SectionPipeline::finish() {
  if (filling_ != nullptr && filling_->bytes > 0) pass();
  MutexLock lock(mutex_);
  while (failure_ == nullptr && std::min(summed_, written_) < passed_) lock.wait(changed_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return std::move(sums_);
}

}  // namespace prun::checkpoint
