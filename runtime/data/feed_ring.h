// The ring of a feed (include/prun/feed.h has its layout) as a job maps it.
//
// Surprising fact: both sides detect a dead partner by its POSIX lock, which the kernel frees when a process ends and
// which its children do not inherit. A process must therefore not open the file twice, because closing either
// descriptor frees the lock.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "ir/data_source.h"
#include "prun/feed.h"

namespace prun {

inline constexpr uint64_t kReadsNothing = ~uint64_t{0};  // prun_feed_header::taken of a rank without inputs

std::string feed_path(const std::string& feed);     // of a feed's name; a path is returned unchanged
int64_t feed_ring_bytes(const DataSource& source);  // bytes of shared memory that the ring of a plan occupies

class FeedRing {
 public:
  // Returns null if there is no such file, or if its feeder has died or is not ready yet. Throws Error for a file of
  // another kind or version.
  static std::unique_ptr<FeedRing> open(const std::string& feed);
  ~FeedRing();
  FeedRing(const FeedRing&) = delete;
  FeedRing& operator=(const FeedRing&) = delete;

  prun_feed_header& header() const { return *static_cast<prun_feed_header*>(memory_); }
  // Returns the slot of a batch, counted from the one at which the job attached.
  const prun_feed_slot& slot(uint64_t batch) const;
  bool feeder_lives() const;
  void hold() const;  // takes the job's lock, the second byte
  std::string fingerprint() const;

 private:
  FeedRing() = default;
  int descriptor_ = -1;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Throws plan_error at `site` with both sides if the ring differs from the inputs and the batch of the plan.
void require_feed_fits(const prun_feed_header& header, const DataSource& source, const Site& site);

}  // namespace prun
