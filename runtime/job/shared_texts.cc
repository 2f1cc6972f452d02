#include "job/shared_texts.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/error.h"

namespace prun {

SharedTexts::SharedTexts() {
  void* pages = mmap(nullptr, sizeof(Entries), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw usage_error("no memory to share between processes");
  entries_ = new (pages) Entries;
}

SharedTexts::~SharedTexts() { munmap(entries_, sizeof *entries_); }

std::optional<std::string> SharedTexts::find(size_t number) const {
  for (const Entry& each : entries_->all)
    if (each.whole.load(std::memory_order_acquire) && each.number == number)
      return std::string(each.text.data(), each.size);
  return std::nullopt;
}

void SharedTexts::add(size_t number, const std::string& text) {
  if (text.size() > entries_->all[0].text.size()) return;
  const size_t place = entries_->taken.fetch_add(1);
  if (place >= entries_->all.size()) return;
  Entry& entry = entries_->all[place];
  entry.number = number;
  entry.size = text.size();
  std::copy(text.begin(), text.end(), entry.text.begin());
  entry.whole.store(true, std::memory_order_release);
}

}  // namespace prun
