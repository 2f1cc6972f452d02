// Records ops in program order, and derives the edges between streams from their accesses.
//
// The recorded sequence defines the semantics: an op on another stream runs as early as its dependencies allow.
// Prefetch therefore needs no edges of its own: a gather waits for the last reader of its slot's previous content, and
// the slots of a pool are its credits.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ir/order.h"
#include "ir/program.h"

namespace prun {

class EdgeBuilder {
 public:
  EdgeBuilder(Program& program, Body& body) : program_(program), body_(body) {}
  // Returns the stream of that name, creating it on first use; throws plan_error beyond kMaxStreams. "" and "compute"
  // are stream 0.
  StreamId stream(const std::string& name);
  // Appends `op` to a stream with the edges that its accesses need, and after `floors`; returns its position.
  OpRef append(StreamId stream, Op&& op, const std::vector<OpRef>& floors = {});
  // Appends a communication op to the named stream. A collective over a group of one rank becomes a copy on stream 0,
  // or no op if its output aliases its input.
  void communicate(const std::string& stream, Op&& op);
  const std::vector<Op>& ops(StreamId stream) const { return body_.streams[stream].ops; }
  auto streams() const { return body_.streams.ids(); }
  // Returns the last op appended to the named stream, if any.
  std::vector<OpRef> last(std::string_view stream) const;
  // Returns the last op of `stream` that a reader of the tensor would wait for; -1 = none.
  int last_writer(StreamId stream, TensorId tensor);
  // Lets `buffer` reuse the bytes of `previous`: its first accesses wait for the last accesses of `previous`.
  void take_over(BufferId buffer, BufferId previous);

 private:
  struct Access {
    OpRef at;
    int64_t begin, end;  // bytes of the buffer
    bool write;
  };
  using Clock = FixedTable<StreamId, int, kMaxStreams>;  // per stream: number of ops that have certainly completed

  void copy_alone(const Op& collective);
  std::vector<Access>& history(BufferId buffer);
  void need(Clock& latest, TensorId tensor, bool write);
  void note(OpRef at, TensorId tensor, bool write);

  Program& program_;
  Body& body_;
  Table<BufferId, std::vector<Access>> history_;
  Table<StreamId, std::vector<Clock>> clocks_;  // per op: the clock when it completes
};

}  // namespace prun
