// One-sided messages: the receiver waits for each tensor that it offers, does not access it until then, and the put
// writes to its address.
//
// Surprising fact: no order between ranks is needed. The sender's put waits for the offer, and the receiver's own offer
// and wait order all its accesses to the bytes.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "ir/ops.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

// A route of one-sided messages of one kind: lane, axis as named by the ops, offset of the peer along it.
using Route = std::tuple<Lane, std::string, int>;
using Routes = std::map<Route, std::vector<OpRef>>;

Routes routes_of(const BodyView& body, const OpDef& kind) {
  Routes routes;
  for (const OpRef ref : body.talks) {
    const Op& op = body.op(ref);
    if (!op.is(kind) || body.program->mesh.size(op.axis) < 2) continue;
    routes[{lane_of(*body.program, op), op.axis, peer_offset(body.program->mesh, op)}].push_back(ref);
  }
  return routes;
}

const Tensor& place_of(const BodyView& body, OpRef ref) { return body.program->tensors[body.op(ref).writes.front()]; }

bool same_place(const Tensor& a, const Tensor& b) {
  return a.buffer == b.buffer && a.byte_offset == b.byte_offset && a.bytes() == b.bytes();
}

void check_pair(const BodyView& body, OpRef offer, OpRef wait, Findings& findings) {
  const Tensor &place = place_of(body, offer), &awaited = place_of(body, wait);
  const std::string& name = body.buffer_name(place.buffer);
  if (!same_place(place, awaited) || !body.order.before(offer, wait)) {
    findings.add(
        "offers differ",
        fmt::format("{}{} offers '{}', and {} waits for '{}'{}", body.where(), body.describe(offer), place.name,
                    body.describe(wait), awaited.name, same_place(place, awaited) ? ", but not after it" : ""),
        body.op(wait).site);
    return;
  }
  for (const Access& access : body.accesses[place.buffer]) {
    if (access.op == offer || access.op == wait) continue;
    if (access.end <= place.byte_offset || access.begin >= place.byte_offset + place.bytes()) continue;
    if (body.order.before(access.op, offer) || body.order.before(wait, access.op)) continue;
    findings.add("used while offered",
                 fmt::format("{}{} {} buffer '{}' between {}, which lets another rank write it, and {}", body.where(),
                             body.describe(access.op), access.write ? "writes" : "reads", name, body.describe(offer),
                             body.describe(wait)),
                 body.op(access.op).site);
    return;
  }
}

void check_body(const BodyView& body, Findings& findings) {
  Routes offers = routes_of(body, ops::signal), waits = routes_of(body, ops::wait_signal);
  for (const auto& [route, refs] : waits) offers[route];
  for (const auto& [route, offered] : offers) {
    const std::vector<OpRef>& awaited = waits[route];
    for (size_t k = 0; k < std::min(offered.size(), awaited.size()); k++)
      check_pair(body, offered[k], awaited[k], findings);
    if (offered.size() == awaited.size()) continue;
    const bool waits_more = awaited.size() > offered.size();
    const OpRef odd = waits_more ? awaited[offered.size()] : offered[awaited.size()];
    findings.add(
        "offers differ",
        fmt::format("{}{} has no {}", body.where(), body.describe(odd),
                    waits_more ? "signal that offers its place" : "wait_signal, so no rank detects when it is filled"),
        body.op(odd).site);
  }
}

// Compares the offsets of the puts with those of the tensors that their receivers offer.
void check_places(const BodyView& mine, int rank, const JobView& view, size_t init_or_step, Findings& findings) {
  const Mesh& mesh = mine.program->mesh;
  for (const auto& [route, puts] : routes_of(mine, ops::put)) {
    const auto& [lane, axis, offset] = route;
    const int receiver = peer_rank(mesh, mine.op(puts.front()), rank);
    const size_t id = view.job->class_of_rank[receiver];
    const BodyView& its = view.bodies[id * 2 + init_or_step];
    Routes offers = routes_of(its, ops::signal);
    const std::vector<OpRef>& offered = offers[{lane, axis, (mesh.size(axis) - offset) % mesh.size(axis)}];
    for (size_t k = 0; k < std::min(puts.size(), offered.size()); k++) {
      const Tensor& place = place_of(its, offered[k]);
      const int64_t at = its.program->buffers[place.buffer].offset + place.byte_offset,
                    put_at = mine.op(puts[k]).attrs.integer("offset");
      if (at == put_at) continue;
      findings.add(
          "put to another place",
          fmt::format("rank {}: {} writes byte {} of the arena of rank {}, which offers '{}' at byte {} ({})", rank,
                      mine.describe(puts[k]), put_at, receiver, place.name, at, its.describe(offered[k])),
          mine.op(puts[k]).site);
      break;
    }
  }
}

}  // namespace

void offered_places_are_left_alone(const JobView& view, Findings& findings) {
  const Job& job = *view.job;
  for (const BodyView& body : view.bodies) check_body(body, findings);
  for (const size_t init_or_step : {0u, 1u}) {
    // Per class, compares only ranks whose puts go to a combination of classes not yet compared.
    std::vector<std::vector<OpRef>> routes(job.classes.size());
    for (size_t id = 0; id < job.classes.size(); id++)
      for (const auto& [route, puts] : routes_of(view.bodies[id * 2 + init_or_step], ops::put))
        routes[id].push_back(puts.front());
    std::set<std::pair<size_t, std::vector<int>>> looked;
    for (int rank = 0; rank < job.classes.front().mesh.ranks(); rank++) {
      const size_t id = job.class_of_rank[rank];
      if (routes[id].empty()) continue;
      const BodyView& mine = view.bodies[id * 2 + init_or_step];
      std::vector<int> receivers;
      for (const OpRef put : routes[id])
        receivers.push_back(job.class_of_rank[peer_rank(mine.program->mesh, mine.op(put), rank)]);
      if (looked.insert({id, receivers}).second) check_places(mine, rank, view, init_or_step, findings);
    }
  }
}

}  // namespace prun::verify
