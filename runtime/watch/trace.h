// --trace FILE: Chrome JSON for https://ui.perfetto.dev: a process per rank, a thread per stream, a slice per op.
// Arrows lead from an edge's producer to the op that waits for it, and from the last arrival at a collective to the
// other members.
//
// Events are copied from the rings while the job runs and written after its end, so that tracing costs the ranks
// nothing. At most kMostEvents are kept; the trace then ends with the last step that all ranks have completely.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "exec/recorder.h"
#include "ir/program.h"
#include "watch/output_file.h"
#include "watch/view.h"
#include "watch/watch_spec.h"

namespace prun {

// Throws usage_error if a run of the steps (first, last], from 1, has none of --trace-steps, so that its trace is
// empty.
void require_traced(const StepWindow& window, int64_t first, int64_t last);

class Trace final : public View {
 public:
  static constexpr size_t kMostEvents = 1 << 20;
  static constexpr std::string_view kHead = "{\"displayTimeUnit\":\"ms\",";

  // `eager`: the device enqueues ops one by one instead of replaying graphs; the file records that.
  explicit Trace(const std::string& path, StepWindow window = {}, bool eager = false, size_t most = kMostEvents)
      : file_(path, "trace", -1, kHead), window_(window), most_(most), eager_(eager) {}
  void begin(const Job& job, const std::vector<int>& ranks, const std::vector<RecorderHeader*>& recorders);
  void started(const RunningJob& job) override;
  void tick() override { collect(); }
  void ended(int /*exit_code*/, bool /*begins_again*/) override { finish(); }
  std::vector<IncompleteOutput> losses() const override;
  void collect();  // copies new events; counts the ones lost because calls were too rare
  void finish();   // writes the file
  using View::finish;
  uint64_t lost() const { return lost_; }
  bool full() const { return kept_ >= most_; }
  bool windowed() const { return window_.given; }
  const OutputFile& file() const { return file_; }

 private:
  struct Track {  // one stream of one rank
    int rank = 0, stream = 0;
    RecorderHeader* recorder = nullptr;
    uint64_t read = 0;
    std::vector<OpEvent> events;
  };
  const Track* track_of(int rank, StreamId stream) const;
  const OpEvent* find(const Track& track, uint32_t step, uint32_t op) const;
  void drop_last_steps();

  OutputFile file_;
  StepWindow window_;
  size_t most_, kept_ = 0;
  bool eager_ = false;
  uint64_t lost_ = 0;
  const Job* job_ = nullptr;
  std::vector<Track> tracks_;
};

}  // namespace prun
