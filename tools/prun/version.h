// Name, version and commit of this program.
#pragma once
#include <string>

namespace prun {

std::string version_text();  // "0.1.0 (commit 1a2b3c4), transport ABI 1"

}  // namespace prun
