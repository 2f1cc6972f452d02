// Checks of packed documents before launch, so that errors do not appear after hours.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/packed_documents.h"

namespace prun {

void check_documents(const Data& data, const std::vector<IdLimit>& limits) {
  if (data.capacity == 0 || data.files.empty()) return;
  const DataFiles files(data, "");
  DocumentScan scan(files, data);
  int64_t longest = 0, number = 0;
  while (const std::optional<DocumentRun> document = scan.next()) {
    longest = std::max(longest, std::min(document->length, data.capacity));
    if (!scan.found_end()) break;
    try {
      require_short(*document, number++, files, data);
    } catch (const Error& error) {
      throw plan_error("data: " + error.message(), data.site);
    }
  }
  if (!scan.found_end()) {
    const int64_t more = std::ssize(data.files) - 1;
    throw plan_error(
        fmt::format("data: no document ends with {} (eot): it is nowhere in {}{}", data.document_end,
                    files.place(0).path, more > 0 ? fmt::format(" and {} more", counted(more, "file")) : ""),
        data.site);
  }
  for (const IdLimit& limit : limits)
    if (limit.input == "positions" && limit.size < longest)
      throw plan_error(fmt::format("data: the longest document has {}, and {} ({}): positions count from 0 in each "
                                   "document, so it needs {}",
                                   counted(longest, "token"), limit.table, limit.site.text(), counted(longest, "row")),
                       data.site);
}

}  // namespace prun
