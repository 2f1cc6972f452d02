// Faults on demand, of one connection to a peer.
#include <prun/chaos.h>

#include "connection.h"
#include "context.h"

namespace prun::socket {

bool Context::disturb(int fault, int peer, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  if (peer < 0 || peer >= ranks || peer == rank) return false;
  for (auto& connection : matcher_.peer(peer).connections) {
    if (connection == nullptr || !connection->open()) continue;
    connection->disturb(static_cast<prun_fault>(fault), seed);
    return true;
  }
  return false;
}

const void* chaos_table() {
  static const prun_chaos table = {.size = sizeof(prun_chaos),
                                   .disturb = [](prun_ctx* ctx, int fault, int peer, uint64_t seed) {
                                     return sdk::context_of<Context>(ctx).disturb(fault, peer, seed) ? 1 : 0;
                                   }};
  return &table;
}

}  // namespace prun::socket
