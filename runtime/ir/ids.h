// The numbers of things in a graph or a program, one type for each kind of thing, and vectors that only their own kind
// of number indexes.
//
// A literal or a loop's counter becomes an id where an id is asked for; an id never becomes another kind of id, and a
// plain number only through index().
#pragma once
#include <compare>
#include <cstddef>
#include <functional>
#include <vector>

namespace prun {

template <class Tag>
class Id {
 public:
  constexpr Id() = default;                       // none
  constexpr Id(int index) : index_(index) {}      // NOLINT(google-explicit-constructor)
  constexpr int index() const { return index_; }  // -1: none
  constexpr operator int() const { return index_; }
  constexpr Id& operator++() { return ++index_, *this; }

 private:
  int index_ = -1;
};

using TensorId = Id<struct TensorTag>;  // of Program::tensors
using BufferId = Id<struct BufferTag>;  // of Program::buffers
using BodyId = Id<struct BodyTag>;      // of Program::bodies
using StreamId = Id<struct StreamTag>;  // of Body::streams; 0 computes
using ValueId = Id<struct ValueTag>;    // of Graph::values
using UnitId = Id<struct UnitTag>;      // of Graph::units
using CallId = Id<struct CallTag>;      // of Graph::calls

// A vector whose items are named by ids of one kind.
template <class IdType, class T>
class Table : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  T& operator[](IdType id) { return std::vector<T>::operator[](static_cast<size_t>(id.index())); }
  const T& operator[](IdType id) const { return std::vector<T>::operator[](static_cast<size_t>(id.index())); }
  IdType next() const { return static_cast<int>(this->size()); }  // the id that the next item gets
  // All ids, in order: for (TensorId id : program.tensors.ids())
  auto ids() const {
    struct Iterator {
      int at;
      IdType operator*() const { return at; }
      Iterator& operator++() { return ++at, *this; }
      bool operator!=(const Iterator& other) const { return at != other.at; }
    };
    struct Range {
      int count;
      Iterator begin() const { return {0}; }
      Iterator end() const { return {count}; }
    };
    return Range{static_cast<int>(this->size())};
  }
};

}  // namespace prun

template <class Tag>
struct std::hash<prun::Id<Tag>> {
  size_t operator()(prun::Id<Tag> id) const { return std::hash<int>()(id.index()); }
};
