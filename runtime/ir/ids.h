// Ids of the objects in a graph or a program, one type per kind of object, and vectors that only their own kind of id
// indexes.
//
// An int converts to any id; an id neither converts to nor compares with another kind of id, and converts to an int
// only by index().
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <functional>
#include <iterator>
#include <vector>

namespace prun {

template <class Tag>
class Id {
 public:
  constexpr Id() = default;                       // none
  constexpr Id(int index) : index_(index) {}      // NOLINT(google-explicit-constructor)
  constexpr int index() const { return index_; }  // -1 = none
  constexpr bool none() const { return index_ < 0; }
  constexpr Id& operator++() { return ++index_, *this; }
  constexpr Id operator+(int more) const { return index_ + more; }
  constexpr Id operator-(int less) const { return index_ - less; }
  friend constexpr int operator-(Id a, Id b) { return a.index_ - b.index_; }
  friend constexpr bool operator==(Id, Id) = default;
  friend constexpr auto operator<=>(Id, Id) = default;  // NOLINT(modernize-use-nullptr): of the generated comparison

 private:
  int index_ = -1;
};

using TensorId = Id<struct TensorTag>;  // indexes Program::tensors
using BufferId = Id<struct BufferTag>;  // indexes Program::buffers
using BodyId = Id<struct BodyTag>;      // indexes Program::bodies
using StreamId = Id<struct StreamTag>;  // indexes Body::streams; stream 0 computes
using ValueId = Id<struct ValueTag>;    // indexes Graph::values
using UnitId = Id<struct UnitTag>;      // indexes Graph::units
using CallId = Id<struct CallTag>;      // indexes Graph::calls

// A vector indexed by one kind of id.
template <class IdType, class T>
class Table : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  typename std::vector<T>::reference operator[](IdType id) { return std::vector<T>::operator[](id.index()); }
  typename std::vector<T>::const_reference operator[](IdType id) const {
    return std::vector<T>::operator[](id.index());
  }
  bool has(IdType id) const { return id >= 0 && id < next(); }
  int count() const { return std::ssize(*this); }
  IdType last() const { return count() - 1; }
  IdType next() const { return count(); }  // id of the next item
  // Returns all ids in order: for (TensorId id : program.tensors.ids())
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
    return Range{count()};
  }
};

// A table of fixed size, and a view of items in other memory.
template <class IdType, class T, size_t kSize>
struct FixedTable : std::array<T, kSize> {
  T& operator[](IdType id) { return std::array<T, kSize>::operator[](id.index()); }
  const T& operator[](IdType id) const { return std::array<T, kSize>::operator[](id.index()); }
};
template <class IdType, class T>
struct TableView {
  T* items = nullptr;
  T& operator[](IdType id) const { return items[id.index()]; }
};

}  // namespace prun

template <class Tag>
struct std::hash<prun::Id<Tag>> {
  size_t operator()(prun::Id<Tag> id) const { return std::hash<int>()(id.index()); }
};
