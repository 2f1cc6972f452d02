#include "exec/omission.h"

#include <utility>

namespace prun {
namespace {

class Omitting final : public Kernel {
 public:
  Omitting(std::unique_ptr<Kernel> kernel, Omission omission)
      : kernel_(std::move(kernel)), omission_(std::move(omission)) {}
  void run() override {
    if (!omission_->exchange(false)) kernel_->run();
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  Omission omission_;
};

}  // namespace

std::unique_ptr<Kernel> omitting(std::unique_ptr<Kernel> kernel, Omission omission) {
  return std::make_unique<Omitting>(std::move(kernel), std::move(omission));
}

}  // namespace prun
