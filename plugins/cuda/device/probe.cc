#include "probe.h"

#include <fmt/format.h>
#include <link.h>
#ifdef PRUN_CUDA_CUDNN
#include <cudnn_graph.h>
#endif

#include <cstdlib>
#include <cstring>
#include <utility>

#include "failure.h"
#include "hardware.h"
#include "management.h"

namespace prun::cuda {
namespace {

// The oldest driver that runs programs of this toolkit's major version; NVIDIA's release notes, table "CUDA Toolkit and
// Minimum Required Driver Version for CUDA Minor Version Compatibility".
constexpr int kMajor = CUDART_VERSION / 1000;
constexpr const char* kLeastDriver = kMajor <= 12 ? "525.60.13" : "580";

std::string no_library(const Driver& driver) {
  if (driver.module)
    return fmt::format(
        "the NVIDIA driver {} is loaded, but its library libcuda.so.1 is not found: in a container, start it "
        "with the NVIDIA runtime (docker run --gpus all)",
        driver.version);
  return "no NVIDIA driver: libcuda.so.1 is not found and no kernel module is loaded; install the driver, version " +
         std::string(kLeastDriver) + " or newer";
}

std::string too_old(const Driver& driver, int driver_cuda) {
  const std::string other =
      driver_cuda >= 12000 ? ", or a prun built with CUDA " + std::to_string(driver_cuda / 1000) : "";
  return fmt::format("the driver{} is for CUDA {}, this prun was built with CUDA {}: it needs driver {} or newer{}",
                     driver.version.empty() ? "" : " " + driver.version, cuda_version(driver_cuda),
                     cuda_version(CUDART_VERSION), kLeastDriver, other);
}

std::string none_seen(const Driver& driver) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr)
    return fmt::format("CUDA_VISIBLE_DEVICES='{}' hides every GPU{}", visible,
                       driver.gpus > 0 ? fmt::format(" of this machine's {}", driver.gpus) : "");
  if (const int divided = Management().mig_gpus(); divided > 0)
    return fmt::format(
        "{} of the GPUs {} divided into instances (MIG), of which CUDA sees none: make some (sudo nvidia-smi mig -cgi "
        "0 "
        "-C), or whole GPUs again (sudo nvidia-smi -mig 0)",
        divided, divided == 1 ? "is" : "are");
  if (!driver.module)
    return "no GPU: libcuda.so.1 is there, but the driver's kernel module is not loaded (lsmod | grep nvidia; modprobe "
           "nvidia)";
  return fmt::format("the driver {} finds no GPU (nvidia-smi has more)", driver.version);
}

// Returns advice for errors of an incomplete set-up; "" for all other errors.
const char* remedy(cudaError_t error) {
  switch (error) {
    case cudaErrorSystemNotReady:
      return "machines with NVSwitch need their fabric manager running (systemctl start nvidia-fabricmanager)";
    case cudaErrorSystemDriverMismatch:
      return "libcuda.so.1 and the kernel module are of different versions: after an update of the driver, reboot or "
             "reload it";
    case cudaErrorCompatNotSupportedOnDevice:
      return "libcuda.so.1 is from a cuda-compat package, which these GPUs do not support: use the driver's own";
    case cudaErrorUnknown:
      return "often the module nvidia-uvm is not loaded (nvidia-modprobe -u)";
    case cudaErrorOperatingSystem:
      return "often /dev/nvidia* may not be opened by this user, or the container was not given them";
    case cudaErrorDevicesUnavailable:
      return "another process has it for itself, or its mode allows none (nvidia-smi -q -d COMPUTE; sudo nvidia-smi -c "
             "0)";
    default:
      return "";
  }
}

std::string problem_of(cudaError_t error, const Driver& driver) {
  int driver_cuda = 0;
  cudaDriverGetVersion(&driver_cuda);
  if (error == cudaErrorInsufficientDriver && driver_cuda > 0) return too_old(driver, driver_cuda);
  if (error == cudaErrorInsufficientDriver) return no_library(driver);  // the runtime's error without a driver
  if (error == cudaErrorNoDevice) return none_seen(driver);
  const std::string why = remedy(error);
  return fmt::format("{} ({}){}{}", cudaGetErrorString(error), cudaGetErrorName(error), why.empty() ? "" : ": ", why);
}

// Returns "" if any of them can be used.
std::string none_usable(int devices) {
  std::string first;
  for (int i = 0; i < devices; ++i) {
    const std::string why = why_unusable(capability_of(i));
    if (why.empty()) return "";
    if (first.empty()) first = fmt::format("GPU {} cannot be used: {}", i, why);
  }
  return first;
}

// Returns "GPU-6b0a8a2c-...", as nvidia-smi writes it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// Returns the file that the loader chose among several that may be installed; "" if none is loaded.
std::string loaded_file(const std::string& name) {
  std::pair<std::string, std::string> search{"/" + name + ".so", ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& [what, found] = *static_cast<std::pair<std::string, std::string>*>(data);
        if (std::strstr(info->dlpi_name, what.c_str()) != nullptr) found = info->dlpi_name;
        return found.empty() ? 0 : 1;
      },
      &search);
  return search.second;
}

std::string library_version(size_t code) { return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); }

struct Library {
  std::string text;     // "cuBLASLt 13.1.0 (/usr/local/cuda/lib64/libcublasLt.so.13)", or a text that it is missing
  std::string problem;  // "" when it can be used
};
Library find_library(const char* name, const char* file, size_t (*version)(), size_t built_with) {
  try {
    const size_t code = version();
    const std::string older =
        code < built_with ? ", older than the " + library_version(built_with) + " that prun was built with" : "";
    return {fmt::format("{} {}{} ({})", name, library_version(code), older, loaded_file(file)), ""};
  } catch (const Failure& failure) {
    return {fmt::format("no {} ({})", name, failure.what()), failure.what()};
  }
}

}  // namespace

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

int capability_of(int device) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

std::string cuda_version(int code) { return fmt::format("{}.{}", code / 1000, code % 1000 / 10); }

std::string find_devices(int& devices) {
  devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return "";
  cudaGetLastError();
  devices = 0;
  return problem_of(error == cudaSuccess ? cudaErrorNoDevice : error, find_driver());
}

int expect_device(int index) {
  int devices = 0;
  if (const std::string problem = find_devices(devices); !problem.empty()) throw Failure(PRUN_ENOTSUP, problem);
  if (index >= 0 && index < devices) return devices;
  throw Failure(PRUN_ENOTSUP, fmt::format("there is no GPU {}: {} {}", index,
                                          devices == 1 ? "the only one that CUDA shows here is" : "CUDA shows here",
                                          devices == 1 ? "0" : fmt::format("0 to {}", devices - 1)));
}

void probe_machine(prun_device_probe& probe) {
  int devices = 0, driver_cuda = 0;
  std::string problem = find_devices(devices);
  if (problem.empty()) problem = none_usable(devices);
  const Driver driver = find_driver();
  cudaDriverGetVersion(&driver_cuda);
  std::string text = driver.version;
  if (driver_cuda > 0)
    text += fmt::format("{}CUDA {}{}", text.empty() ? "" : " (", cuda_version(driver_cuda), text.empty() ? "" : ")");
  sdk::copy_text(text, probe.driver, sizeof probe.driver);
  sdk::copy_text("CUDA runtime " + cuda_version(CUDART_VERSION), probe.runtime, sizeof probe.runtime);
  const Library cublas = find_library("cuBLASLt", "libcublasLt", cublasLtGetVersion, CUBLAS_VERSION);
  std::string libraries = cublas.text;
#ifdef PRUN_CUDA_CUDNN
  libraries += ", " + find_library("cuDNN", "libcudnn", cudnnGetVersion, CUDNN_VERSION).text;
#else
  libraries += ", built without cuDNN";
#endif
  sdk::copy_text(libraries, probe.libraries, sizeof probe.libraries);
  if (problem.empty()) problem = cublas.problem;
  probe.devices = problem.empty() ? devices : 0;
  sdk::copy_text(problem, probe.problem, sizeof probe.problem);
}

void describe_device(int index, prun_device_info& info) {
  expect_device(index);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  const int capability = 10 * properties.major + properties.minor;
  sdk::copy_text(properties.name, info.name, sizeof info.name);
  sdk::copy_text(fmt::format("sm_{}", capability), info.architecture, sizeof info.architecture);
  sdk::copy_text(uuid_text(properties.uuid), info.id, sizeof info.id);
  info.peak_flops_bf16 = peak_flops_bf16(properties.name, capability, properties.multiProcessorCount,
                                         1e3 * attribute(cudaDevAttrClockRate, index));
  if (const std::string why = why_unusable(capability); !why.empty())
    throw Failure(PRUN_ENOTSUP, fmt::format("GPU {} ({}) cannot be used: {}", index, properties.name, why));
  if (const cudaError_t error = cudaSetDevice(index); error != cudaSuccess) {
    cudaGetLastError();
    throw Failure(PRUN_ENOTSUP,
                  fmt::format("GPU {} ({}): {}", index, properties.name, problem_of(error, find_driver())));
  }
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  info.free_bytes = free;
  info.total_bytes = total;
}

}  // namespace prun::cuda
