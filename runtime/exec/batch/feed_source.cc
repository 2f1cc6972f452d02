// prun.data.feed: batches that another process writes into a ring in shared memory (include/prun/feed.h).
//
// Surprising fact: the thread that reads ahead does the waiting, so a feeder that is faster than a step costs the copy
// of the batch alone.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "data/feed_ring.h"
#include "exec/batch/sample_source.h"

namespace prun {
namespace {

using Clock = std::chrono::steady_clock;

template <class T>
T load(T& shared) {
  return std::atomic_ref<T>(shared).load(std::memory_order_acquire);
}

class FeedSource final : public SampleSource {
 public:
  explicit FeedSource(const SourceContext& context) : context_(context), ring_(FeedRing::open(context.source.feed)) {
    if (ring_ == nullptr) fail_dead();
    const prun_feed_header& head = ring_->header();
    for (uint32_t i = 0; i < head.input_count; ++i) inputs_[head.inputs[i].name] = &head.inputs[i];
    uint32_t first = 0;
    while (first < head.ranks && head.taken[first] == kReadsNothing) ++first;
    reports_ = first == static_cast<uint32_t>(context.rank);
  }

  void begin_batch(int64_t first) override {
    batch_ = static_cast<uint64_t>((first - context_.begin_samples) / context_.source.global_batch);
    first_ = first;
    wait();
    const prun_feed_slot& slot = ring_->slot(batch_);
    if (slot.number != batch_ || slot.check != ~batch_)
      throw Error(Exit::feed,
                  fmt::format("the feed '{}' has written batch {} where batch {} should be: its feeder does "
                              "not wait for the ranks",
                              context_.source.feed, slot.number, batch_));
  }

  void end_batch() override {
    const prun_feed_slot& slot = ring_->slot(batch_);
    if (context_.cursors)
      context_.cursors->add(first_ + context_.source.global_batch,
                            std::string(slot.cursor, strnlen(slot.cursor, sizeof slot.cursor)));
    std::atomic_ref(ring_->header().taken[context_.rank]).store(batch_ + 1, std::memory_order_release);
  }

  void fill(std::span<const BatchOutput> outputs, int64_t slot, int64_t sample, const std::vector<void*>& to) override {
    const auto* begin = reinterpret_cast<const std::byte*>(&ring_->slot(batch_));
    const int64_t inside = sample - first_;
    for (const BatchOutput& out : outputs) {
      const prun_feed_input& input = *inputs_.at(out.name);
      const Element element = parse_element(input.element).value();
      const std::byte* raw = begin + input.offset + inside * out.whole() * element_width(element);
      store_sample(out, element, raw, 1, false, slot, to[out.at], [&](int64_t id, int64_t position) {
        throw usage_error(
            fmt::format("the feed '{}': the label {} in '{}', sample {} of batch {}, position {}, is neither in the {} "
                        "logits of a row nor {}, which is ignored",
                        context_.source.feed, id, out.name, inside, batch_, position, out.classes, *out.ignored));
      });
    }
  }

  std::string path(const BatchOutput&) const override { return "the feed '" + context_.source.feed + "'"; }
  void await(bool begins) override { awaited_.store(begins ? Clock::now().time_since_epoch().count() : 0); }
  void stop() override { stopped_.store(true); }

 private:
  [[noreturn]] void fail_dead() const {
    throw Error(Exit::feed, fmt::format("the feed '{}' has died: its feeder ended without a word before batch {}",
                                        context_.source.feed, batch_));
  }

  // Waits until the feeder has written the batch. Time counts as slow while the step waits, too.
  void wait() {
    Clock::duration sleep = std::chrono::microseconds(20), said = std::chrono::seconds(1);
    Clock::time_point looks = Clock::now();
    while (!has_batch()) {
      if (stopped_.load() || (context_.cancelled && context_.cancelled())) {
        Error ended(Exit::feed, "the job ended while a feed was waited for");
        ended.effect = true;
        throw ended;
      }
      const Clock::time_point now = Clock::now();
      if (now >= looks) {
        require_feeder();
        looks = now + std::chrono::milliseconds(100);
      }
      const Clock::duration since(awaited_.load());
      const Clock::duration waited = since.count() == 0 ? Clock::duration(0) : now.time_since_epoch() - since;
      if (waited >= said) report(waited), said *= 2;
      usleep(static_cast<useconds_t>(std::chrono::duration_cast<std::chrono::microseconds>(sleep).count()));
      sleep = std::min<Clock::duration>(sleep * 2, std::chrono::milliseconds(1));
    }
  }

  bool has_batch() const {
    prun_feed_header& head = ring_->header();
    return load(head.answered) == load(head.attached) && load(head.made) > batch_;
  }

  void report(Clock::duration waited) const {
    if (!reports_) return;
    fmt::print(stderr, "prun: the feed '{0}' is slow: a step has waited {2:.0f} s for batch {1}\n",
               context_.source.feed, batch_, std::chrono::duration<double>(waited).count());
  }

  // Throws if no further batch will come.
  void require_feeder() const {
    prun_feed_header& head = ring_->header();
    const bool lives = ring_->feeder_lives();
    const uint32_t state = load(head.answered) == load(head.attached) ? load(head.state) : uint32_t{PRUN_FEED_FEEDS};
    if (has_batch()) return;
    if (state == PRUN_FEED_ENDED)
      throw Error(Exit::feed, fmt::format("the feed '{}' has ended after batch {}, and the plan has more steps, which "
                                          "need batch {}: lower 'steps', or feed more",
                                          context_.source.feed, load(head.made), batch_ + 1));
    if (state == PRUN_FEED_FAILED)
      throw Error(Exit::feed, fmt::format("the feed '{}' has failed before batch {}: {}", context_.source.feed, batch_,
                                          std::string(head.message, strnlen(head.message, sizeof head.message))));
    if (!lives) fail_dead();
  }

  SourceContext context_;
  std::unique_ptr<FeedRing> ring_;
  std::map<std::string, const prun_feed_input*> inputs_;
  bool reports_ = false;  // one rank reports for all
  uint64_t batch_ = 0;    // counted from the one at which the job attached
  int64_t first_ = 0;     // global index of its first sample
  std::atomic<bool> stopped_ = false;
  std::atomic<Clock::rep> awaited_ = 0;  // when the step began to wait; 0 = it computes
};

}  // namespace

std::unique_ptr<SampleSource> make_feed_source(const SourceContext& context) {
  return std::make_unique<FeedSource>(context);
}

}  // namespace prun
