#include "compile/draft.h"
namespace prun {
void distribute(Draft&) {}
}  // namespace prun
