// Recording ops in the order that gives the step its meaning, and deriving the edges between streams from it.
//
// The recorded sequence is the semantics: an op on another stream runs as early as its data allows, never before what
// it depends on. So prefetch needs no edges of its own: a gather waits for the last reader of its slot's former
// content, and a pool's number of slots is the number of credits.
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
  // The stream of that name, made on first use. "" and "compute" are stream 0.
  StreamId stream(const std::string& name);
  // Appends `op` to a stream with the edges that its reads and writes need, and after `floors`; returns where it is.
  OpRef append(StreamId stream, Op op, const std::vector<OpRef>& floors = {});
  // Appends a communication op to the stream of that name. A collective over a group of one rank has nobody to talk to:
  // it becomes a copy on stream 0, or nothing where its output is its input.
  void communicate(const std::string& stream, Op op);
  const std::vector<Op>& ops(StreamId stream) const { return body_.streams[stream].ops; }
  auto streams() const { return body_.streams.ids(); }
  // The op that the stream of that name has ended with so far, if any.
  std::vector<OpRef> last(std::string_view stream) const;
  // The last op of `stream` that a reader of the tensor would wait for; -1: none.
  int last_writer(StreamId stream, TensorId tensor);
  // `buffer` takes over the bytes of `previous`: its first accesses wait for the previous one's last.
  void take_over(BufferId buffer, BufferId previous);

 private:
  struct Access {
    OpRef at;
    int64_t begin, end;  // bytes of the buffer
    bool write;
  };
  using Clock = FixedTable<StreamId, int, kMaxStreams>;  // how many of its ops are certain to have completed

  void copy_alone(const Op& collective);
  std::vector<Access>& history(BufferId buffer);
  void need(Clock& latest, TensorId tensor, bool write);
  void note(OpRef at, TensorId tensor, bool write);

  Program& program_;
  Body& body_;
  Table<BufferId, std::vector<Access>> history_;
  Table<StreamId, std::vector<Clock>> clocks_;  // by op: what has completed when the op completes
};

}  // namespace prun
