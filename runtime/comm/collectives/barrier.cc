// Barrier by dissemination (Hensgen, Finkel and Manber 1988): ceil(log2 n) rounds, any n; the frames are the messages.
#include "comm/collectives/algorithm.h"

namespace prun {

void barrier_dissemination(Group& group, const CollCall&) {
  for (int distance = 1; distance < group.size; distance *= 2) {
    group.wire.send(group.right(distance), nullptr, 0);
    group.wire.recv(group.left(distance), nullptr, 0);
    group.wire.flush();
  }
}

}  // namespace prun
