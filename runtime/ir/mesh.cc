// Row-major numbering of ranks over the axes. The size and the index also take several axes, "dp,node": the first
// varies slowest.
#include "ir/mesh.h"

#include <fmt/format.h>

#include "base/error.h"

namespace prun {

int Mesh::ranks() const {
  int n = 1;
  for (const Axis& axis : axes_) n *= axis.size;
  return n;
}

bool Mesh::has(const std::string& axis) const {
  for (const Axis& a : axes_)
    if (a.name == axis) return true;
  return false;
}

int Mesh::stride(size_t axis) const {
  int n = 1;
  for (size_t i = axis + 1; i < axes_.size(); ++i) n *= axes_[i].size;
  return n;
}

int Mesh::size(const std::string& axis) const {
  if (axis == kWorld) return ranks();
  for (const Axis& a : axes_)
    if (a.name == axis) return a.size;
  if (const size_t comma = axis.find(','); comma != std::string::npos)
    return size(axis.substr(0, comma)) * size(axis.substr(comma + 1));
  PRUN_CHECK(false, "no axis " + axis + " in mesh " + text());
  return 1;
}

int Mesh::index(const std::string& axis, int rank) const {
  if (axis == kWorld) return rank;
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == axis) return rank / stride(i) % axes_[i].size;
  if (const size_t comma = axis.find(','); comma != std::string::npos) {
    const std::string rest = axis.substr(comma + 1);
    return index(axis.substr(0, comma), rank) * size(rest) + index(rest, rank);
  }
  PRUN_CHECK(false, "no axis " + axis + " in mesh " + text());
  return 0;
}

std::vector<int> Mesh::group(const std::string& axis, int rank) const {
  std::vector<int> members;
  if (axis == kWorld) {
    for (int r = 0; r < ranks(); ++r) members.push_back(r);
    return members;
  }
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name != axis) continue;
    int first = rank - index(axis, rank) * stride(i);
    for (int k = 0; k < axes_[i].size; ++k) members.push_back(first + k * stride(i));
    return members;
  }
  PRUN_CHECK(false, "no axis " + axis + " in mesh " + text());
  return members;
}

std::string Mesh::text() const {
  std::string out;
  for (const Axis& axis : axes_) out += fmt::format("{}{}={}", out.empty() ? "" : " x ", axis.name, axis.size);
  return out.empty() ? "1 rank" : out;
}

}  // namespace prun
