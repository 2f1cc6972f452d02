// The mesh: named axes whose sizes multiply to the number of ranks. The first axis varies slowest, so that groups along
// the last axis are neighboring ranks (as in torchtitan's and Megatron's device meshes).
#pragma once
#include <string>
#include <vector>

namespace prun {

struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

inline constexpr const char* kWorld = "world";  // the group of all ranks; reserved, no axis may have this name

class Mesh {
 public:
  Mesh() = default;
  explicit Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {}
  const std::vector<Axis>& axes() const { return axes_; }
  int ranks() const;
  bool has(const std::string& axis) const;
  int size(const std::string& axis) const;             // kWorld: all ranks
  int index(const std::string& axis, int rank) const;  // position of `rank` along `axis`
  // Returns the global ranks that share a group with `rank` along `axis`, in axis order.
  std::vector<int> group(const std::string& axis, int rank) const;
  std::string text() const;  // "dp=2 x tp=4"
  bool operator==(const Mesh&) const = default;

 private:
  int stride(size_t axis) const;
  std::vector<Axis> axes_;
};

}  // namespace prun
