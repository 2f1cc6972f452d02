// Copies of pieces, element by element, from the meaning of each index.
#include "device/share.h"
#include "kernels/reference/rules.h"

namespace prun::reference {
namespace {

// The whole tensor seen as [outer, pieces, inner].
struct Blocks {
  int64_t outer = 1, pieces, inner;
  Blocks(const Call& c, const Array& whole) : pieces(c.attrs.integer("pieces", 1)) {
    for (int64_t d = 0; d < c.attrs.integer("dim"); ++d) outer *= whole.shape[d];
    inner = whole.count() / (outer * pieces);
  }
  int64_t whole(int64_t o, int64_t p, int64_t i) const { return (o * pieces + p) * inner + i; }
  int64_t apart(int64_t o, int64_t p, int64_t i) const { return (p * outer + o) * inner + i; }
  template <class F>
  void each(F f) const {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t p = 0; p < pieces; ++p)
        for (int64_t i = 0; i < inner; ++i) f(o, p, i);
  }
};

void join_pieces(Call& c) {
  Blocks b(c, c.writes[0]);
  b.each([&](int64_t o, int64_t p, int64_t i) { c.writes[0][b.whole(o, p, i)] = c.reads[0][b.apart(o, p, i)]; });
}

void cut_pieces(Call& c) {
  Blocks b(c, c.reads[0]);
  b.each([&](int64_t o, int64_t p, int64_t i) { c.writes[0][b.apart(o, p, i)] = c.reads[0][b.whole(o, p, i)]; });
}

void take_piece(Call& c) {
  Blocks b(c, c.reads[0]);
  int64_t own = share_along(c.memory, c.attrs.text("axis")).index;
  b.each([&](int64_t o, int64_t p, int64_t i) {
    if (p == own) c.writes[0][o * b.inner + i] = c.reads[0][b.whole(o, p, i)];
  });
}

void take_slots(Call& c) {
  const int64_t run = c.attrs.integer("run"), block = run * c.attrs.integer("pieces"),
                own = share_along(c.memory, c.attrs.text("axis")).index;
  for (int64_t i = 0; i < c.reads[0].count(); ++i) {
    const auto slot = static_cast<int64_t>(c.reads[0][i]);
    const bool mine = slot >= 0 && slot % block / run == own;
    c.writes[0][i] = static_cast<double>(mine ? slot / block * run + slot % run : -1);
  }
}

}  // namespace

const Family piece_rules = {
    {"join_pieces", join_pieces}, {"cut_pieces", cut_pieces}, {"take_piece", take_piece}, {"take_slots", take_slots}};

}  // namespace prun::reference
