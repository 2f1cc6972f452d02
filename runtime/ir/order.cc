// Vector clocks as a policy of a walk through the body by one rank. That walk is itself a legal execution, so that a
// cycle of waits shows as streams that cannot advance.
#include "ir/order.h"

#include <algorithm>

namespace prun {

// An op's clock is the join of the clocks of its predecessor and the ops that it waits for, plus those ops themselves.
class Order::Clocks : public WalkPolicy {
 public:
  Clocks(Order& order, const Body& body) : order_(order), body_(body), walk_(body, *this) {}

  void build() {
    if (walk_.run()) return;
    for (StreamId s = 0; s < order_.streams_; ++s)
      if (const OpRef next = walk_.ref({0, s}); next.index < std::ssize(body_.streams[s].ops))
        order_.stuck_.push_back(next);
  }

  void run(StreamCursor at) override {
    const OpRef self = walk_.ref(at);
    const TableView<StreamId, int> mine = order_.clock(self);
    if (self.index > 0) join(mine, {self.stream, self.index - 1});
    for (const Edge& edge : walk_.op(at).waits)
      if (edge.back == 0) join(mine, {edge.stream, edge.index});
    order_.sequence_.push_back(self);
  }

 private:
  void join(TableView<StreamId, int> into, OpRef op) const {
    const TableView<StreamId, int> from = order_.clock(op);
    for (StreamId s = 0; s < order_.streams_; ++s) into[s] = std::max(into[s], from[s]);
    into[op.stream] = std::max(into[op.stream], op.index + 1);
  }

  Order& order_;
  const Body& body_;
  Walk walk_;
};

Order::Order(const Body& body) : streams_(std::ssize(body.streams)) {
  for (const Stream& stream : body.streams) {
    first_.push_back(total_);
    total_ += std::ssize(stream.ops);
  }
  clocks_.assign(total_ * body.streams.size(), 0);
  sequence_.reserve(total_);
  Clocks(*this, body).build();
}

}  // namespace prun
