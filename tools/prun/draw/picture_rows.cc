#include <algorithm>
#include <set>

#include "draw/picture_parts.h"
#include "ir/ops.h"

namespace prun::draw {
namespace {

bool carries_messages(const std::string& stream) {
  return stream.starts_with(ops::send.name) || stream.starts_with(ops::recv.name) || stream.ends_with("_send") ||
         stream.ends_with("_recv");
}

bool receives(const std::string& stream) { return stream.starts_with(ops::recv.name) || stream.ends_with("_recv"); }

bool is_pipeline_stream(const std::string& stream) {
  return carries_messages(stream) &&
         (stream.find(" forward") != std::string::npos || stream.find(" backward") != std::string::npos);
}

}  // namespace

PictureRows picture_rows(const Timeline& timeline) {
  PictureRows all;
  std::vector<std::vector<Group>> by_lane(timeline.lanes.size());
  for (const Group& group : timeline.groups)
    by_lane[static_cast<size_t>(timeline.boxes[static_cast<size_t>(group.first)].lane)].push_back(group);
  int rank = -1;
  for (size_t l = 0; l < timeline.lanes.size(); ++l) {
    const Lane& lane = timeline.lanes[l];
    const bool opens = lane.rank != rank;
    if (is_pipeline_stream(lane.name)) all.arrows = true;
    const bool shows = std::any_of(by_lane[l].begin(), by_lane[l].end(),
                                   [](const Group& group) { return group.kind != BoxKind::other; });
    if (!opens && (!shows || receives(lane.name) || is_pipeline_stream(lane.name))) continue;
    rank = lane.rank;
    all.rows.push_back({static_cast<int>(l), lane.stream == 0, opens, lane.who, lane.name, std::move(by_lane[l])});
  }
  return all;
}

std::vector<BoxKind> kinds_of(const PictureRows& rows) {
  std::set<BoxKind> kinds;
  for (const PictureRow& row : rows.rows)
    for (const Group& group : row.groups) kinds.insert(group.kind);
  return {kinds.begin(), kinds.end()};
}

}  // namespace prun::draw
