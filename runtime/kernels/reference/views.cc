// Views element by element: each rule computes the index in x of every element of y from the op's meaning.
#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

Shape list_of(const Call& c, const char* name) {
  Shape list;
  for (const double one : c.attrs.numbers(name)) list.push_back(static_cast<int64_t>(one));
  return list;
}

// Returns the index of a tensor's element by its place in every dim.
int64_t at(const Shape& shape, const Shape& place) {
  int64_t index = 0;
  for (size_t i = 0; i < shape.size(); i++) index = index * shape[i] + place[i];
  return index;
}

// Calls f(place) for each element of the shape in order.
template <class F>
void each_place(const Shape& shape, F f) {
  for (int64_t e = 0; e < element_count(shape); e++) {
    Shape place(shape.size());
    int64_t rest = e;
    for (size_t i = shape.size(); i-- > 0;) place[i] = rest % shape[i], rest /= shape[i];
    f(place);
  }
}

void reshape(Call& c) { c.writes[0].v = c.reads[0].v; }

void permute(Call& c) {
  const Shape order = list_of(c, "order");
  each_place(c.writes[0].shape, [&](const Shape& place) {
    Shape from(place.size());
    for (size_t i = 0; i < place.size(); i++) from[order[i]] = place[i];
    c.writes[0][at(c.writes[0].shape, place)] = c.reads[0][at(c.reads[0].shape, from)];
  });
}

void slice(Call& c) {
  each_place(c.writes[0].shape, [&](Shape place) {
    const int64_t to = at(c.writes[0].shape, place);
    place[c.attrs.integer("dim")] += c.attrs.integer("start");
    c.writes[0][to] = c.reads[0][at(c.reads[0].shape, place)];
  });
}

void pad(Call& c) {
  const int64_t dim = c.attrs.integer("dim"), size = c.reads[0].shape[dim];
  each_place(c.writes[0].shape, [&](Shape place) {
    const int64_t to = at(c.writes[0].shape, place);
    place[dim] -= c.attrs.integer("before");
    const bool inside = place[dim] >= 0 && place[dim] < size;
    c.writes[0][to] = inside ? c.reads[0][at(c.reads[0].shape, place)] : c.attrs.number("value", 0);
  });
}

void concat(Call& c) {
  const int64_t dim = c.attrs.integer("dim");
  int64_t start = 0;
  for (const Array& x : c.reads) {
    each_place(x.shape, [&](Shape place) {
      const double value = x[at(x.shape, place)];
      place[dim] += start;
      c.writes[0][at(c.writes[0].shape, place)] = value;
    });
    start += x.shape[dim];
  }
}

// Returns the place in the small shape that the place in the expanded one repeats.
Shape unexpanded(Shape place, const Shape& small) {
  for (size_t i = 0; i < place.size(); i++) place[i] = small[i] == 1 ? 0 : place[i];
  return place;
}

void expand(Call& c) {
  const Array &x = c.reads[0], &y = c.writes[0];
  each_place(y.shape,
             [&](const Shape& place) { c.writes[0][at(y.shape, place)] = x[at(x.shape, unexpanded(place, x.shape))]; });
}

void expand_grad(Call& c) {
  const Array &dy = c.reads[0], &dx = c.writes[0];
  each_place(dy.shape, [&](const Shape& place) {
    c.writes[0][at(dx.shape, unexpanded(place, dx.shape))] += dy[at(dy.shape, place)];
  });
}

// Returns the place in x of a place in y = gather_rows(x, ids).
Shape row_of(Shape place, const Array& ids) {
  const size_t dim = ids.shape.size() - 1;
  place[dim] = static_cast<int64_t>(ids[at(ids.shape, Shape(place.begin(), place.begin() + dim + 1))]);
  return place;
}

void gather_rows(Call& c) {
  const Array &x = c.reads[0], &y = c.writes[0];
  each_place(y.shape,
             [&](const Shape& place) { c.writes[0][at(y.shape, place)] = x[at(x.shape, row_of(place, c.reads[1]))]; });
}

void gather_rows_grad(Call& c) {
  const Array &dy = c.reads[1], &dx = c.writes[0];
  each_place(dy.shape, [&](const Shape& place) {
    c.writes[0][at(dx.shape, row_of(place, c.reads[0]))] += dy[at(dy.shape, place)];
  });
}

}  // namespace

const Family view_rules = {
    {"reshape", reshape},
    {"permute", permute},
    {"slice", slice},
    {"pad", pad},
    {"concat", concat},
    {"expand", expand},
    {"expand_grad", expand_grad},
    {"gather_rows", gather_rows},
    {"gather_rows_grad", gather_rows_grad},
};

}  // namespace prun::reference
