// A kind of data as next_batch reads it: one file for each kind in this folder, chosen by DataSource::kind.
//
// Surprising fact: a source has no notion of batches or ranks. It fills a slot of tensors from the global index of a
// sample, so that any rank can read any sample, for example the targets of the whole batch.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/element.h"
#include "data/sample_order.h"
#include "device/element.h"
#include "device/ids.h"
#include "device/share.h"
#include "exec/feed_cursors.h"
#include "ir/data_source.h"

namespace prun {

// An input of the model: a tensor that next_batch writes, or a copy of it for reading samples of other ranks.
struct BatchOutput {
  std::string name;
  Dtype dtype;
  int64_t per_sample;                                      // elements of the rank's part of a sample
  size_t at;                                               // index among the tensors
  std::optional<TokenPositions> positions = std::nullopt;  // positions of the rank's tokens; none = it has all
  int64_t per_token = 1;                                   // elements of a token
  std::span<const int64_t> tokens = {};  // positions of the rank's tokens, if they differ from sample to sample
  std::optional<int64_t> ignored = std::nullopt;  // targets of this value do not count, and others are below `classes`
  int64_t classes = 0;
  bool is_target() const { return name == "y" || name == "targets"; }
  bool ignores(int64_t id) const { return ignored && id == *ignored; }
  int64_t whole() const { return positions ? positions->whole() * per_token : per_sample; }  // elements of a sample
  // Returns the index in the whole sample of the rank's element.
  int64_t element(int64_t i) const {
    if (!tokens.empty()) return tokens[i / per_token] * per_token + i % per_token;
    return positions ? positions->of(i / per_token) * per_token + i % per_token : i;
  }
  // Calls use(i, element, count) for each run of the rank's elements that is contiguous in the whole sample.
  template <class Use>
  void for_runs(const Use& use) const {
    const int64_t run = !tokens.empty() ? per_token
                        : positions     ? std::min(positions->chunk * per_token, per_sample)
                                        : per_sample;
    for (int64_t i = 0; i < per_sample; i += run) use(i, element(i), run);
  }
};

// Properties of the job that a source needs.
struct SourceContext {
  DataSource source;
  SampleUse use = SampleUse::training;
  uint64_t seed = 0;
  int64_t begin_samples = 0;  // samples that the run had consumed when it began
  int rank = 0;
  std::function<bool()> cancelled;       // whether the job is ending; null = it never is
  std::shared_ptr<FeedCursors> cursors;  // null = not a feed, or no checkpoints
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // Opens what an output is read from. Throws usage_error if a file is missing or has changed.
  virtual void add(const BatchOutput&) {}
  // Surround the fills of a batch. `first`: global index of its first sample. A feed waits for the batch and frees it.
  virtual void begin_batch(int64_t /*first*/) {}
  virtual void end_batch() {}
  // Writes sample `sample` of each output to slot `slot` of the output's tensor in `to`. One thread at a time.
  virtual void fill(std::span<const BatchOutput> outputs, int64_t slot, int64_t sample,
                    const std::vector<void*>& to) = 0;
  // Returns the number of targets of the sample that are not kIgnoredTarget, if no token has to be read for it.
  virtual std::optional<int64_t> counted_targets(const BatchOutput&, int64_t /*sample*/) { return std::nullopt; }
  // Divides the tokens of a sample over `ranks` ranks by the cost of their attention. Returns their positions, those of
  // the first rank first, each rank's in order.
  virtual std::vector<int64_t> shares(int64_t sample, int64_t ranks);
  virtual std::string path(const BatchOutput&) const { return ""; }  // its file, for messages; "" = none
  virtual bool reads_ahead() const { return true; }                  // false: filling is cheap
  // Whether samples cost differently, so that those of a batch are ordered by data/packed_documents.h's balanced_order.
  virtual bool balances() const { return false; }
  virtual double cost(int64_t /*sample*/) { return 1; }  // of its attention; any unit
  virtual void await(bool /*begins*/) {}                 // the step begins or ends to wait for a batch
  virtual void stop() {}                                 // ends a wait in begin_batch; any thread

 protected:
  SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;
};

std::unique_ptr<SampleSource> make_index_source(const SourceContext& context);
std::unique_ptr<SampleSource> make_random_source(const SourceContext& context);
std::unique_ptr<SampleSource> make_arrays_source(const SourceContext& context);
std::unique_ptr<SampleSource> make_tokens_source(const SourceContext& context);
std::unique_ptr<SampleSource> make_documents_source(const SourceContext& context);
std::unique_ptr<SampleSource> make_feed_source(const SourceContext& context);
std::unique_ptr<SampleSource> make_sample_source(const SourceContext& context);  // by DataSource::kind

// Converts the rank's elements of a whole sample, `raw`, to slot `slot` of the output's tensor. `padding`: no target
// counts. Calls `fail(id, position)`, which throws, for a target outside the classes.
template <class Fail>
void store_sample(const BatchOutput& out, Element element, const void* raw, double scale, bool padding, int64_t slot,
                  void* to, const Fail& fail) {
  with_elements(element, raw, [&](const auto* numbers) {
    if (out.dtype != Dtype::i32) {
      with_element_type(out.dtype, [&]<class T>() {
        T* const numbers_of_slot = static_cast<T*>(to) + slot * out.per_sample;
        out.for_runs([&](int64_t first, int64_t from, int64_t n) {
          for (int64_t i = 0; i < n; ++i)
            numbers_of_slot[first + i] = element_of<T>(static_cast<double>(numbers[from + i]) * scale);
        });
      });
      return;
    }
    int32_t* const ids = static_cast<int32_t*>(to) + slot * out.per_sample;
    out.for_runs([&](int64_t first, int64_t from, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t id = static_cast<int64_t>(numbers[from + i]);
        if (!out.ignored || (id >= 0 && id < out.classes && !padding && !out.ignores(id)))
          ids[first + i] = static_cast<int32_t>(id);
        else if (padding || out.ignores(id))
          ids[first + i] = kIgnoredTarget;
        else
          fail(id, from + i);
      }
    });
  });
}

}  // namespace prun
