// Which device a thread works on, from libraries that are loaded already: CUDA's driver, its runtime or HIP's, and NVML
// for the UUID. Where none of them knows, the driver's own files tell, if only one device can be meant.
#include "about.h"

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

namespace megatrace {

namespace {

constexpr const char* kDriver[] = {"libcuda.so.1", nullptr};
constexpr const char* kRuntime[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", nullptr};
constexpr const char* kHip[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", nullptr};
constexpr const char* kNvml[] = {"libnvidia-ml.so.1", nullptr};

// A function of a library that somebody else has loaded, else nullptr.
template <class F>
F function(const char* const* libraries, const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  for (; found == nullptr && *libraries != nullptr; ++libraries) {
    void* handle = dlopen(*libraries, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    found = dlsym(handle, name);
    dlclose(handle);  // whoever had loaded it still has it
  }
  return reinterpret_cast<F>(found);
}

using GetDevice = int (*)(int*);
using GetBusId = int (*)(char*, int, int);

void uuid_of_driver(DeviceName* name, int device) {
  using GetUuid = int (*)(unsigned char*, int);
  auto ask = function<GetUuid>(kDriver, "cuDeviceGetUuid_v2");
  if (ask == nullptr) ask = function<GetUuid>(kDriver, "cuDeviceGetUuid");
  unsigned char u[16];
  if (ask == nullptr || ask(u, device) != 0) return;
  snprintf(name->uuid, sizeof name->uuid,
           "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4],
           u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

void uuid_of_nvml(DeviceName* name) {
  const auto handle = function<int (*)(const char*, void**)>(kNvml, "nvmlDeviceGetHandleByPciBusId_v2");
  const auto uuid = function<int (*)(void*, char*, unsigned)>(kNvml, "nvmlDeviceGetUUID");
  void* device = nullptr;
  char word[96] = "";
  if (handle == nullptr || uuid == nullptr || handle(name->pci, &device) != 0 ||
      uuid(device, word, sizeof word - 1) != 0 || strlen(word) >= sizeof name->uuid)
    return;
  memcpy(name->uuid, word, strlen(word) + 1);
}

bool asked(DeviceName* name, const char* const* libraries, const char* current, const char* bus_id, const char* from) {
  const auto get = function<GetDevice>(libraries, current);
  const auto pci = function<GetBusId>(libraries, bus_id);
  int device = -1;
  if (get == nullptr || pci == nullptr || get(&device) != 0 || pci(name->pci, sizeof name->pci - 1, device) != 0) {
    name->pci[0] = '\0';
    return false;
  }
  for (char* at = name->pci; *at != '\0'; ++at) *at = static_cast<char>(tolower(*at));  // as the kernel writes it
  name->from = from;
  if (libraries == kDriver) uuid_of_driver(name, device);
  if (name->uuid[0] == '\0') uuid_of_nvml(name);
  return true;
}

// "GPU UUID:   GPU-…" of one of the driver's files.
void uuid_of_file(const char* folder, const char* pci, char* into, size_t size) {
  char path[1024], text[2048];
  snprintf(path, sizeof path, "%s/%s/information", folder, pci);
  into[0] = '\0';
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  text[got > 0 ? got : 0] = '\0';
  const char* at = strstr(text, "GPU-");
  const size_t length = at == nullptr ? 0 : strcspn(at, " \t\r\n");
  if (length == 0 || length >= size) return;
  memcpy(into, at, length);
  into[length] = '\0';
}

// The driver lists its devices as files. CUDA's order of them is not known without CUDA, so one is named only where it
// is the only one, or where CUDA_VISIBLE_DEVICES names one by its UUID.
bool listed(DeviceName* name) {
  const char* root = getenv("MEGATRACE_PROC");
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  char folder[256];
  snprintf(folder, sizeof folder, "%s/driver/nvidia/gpus", root != nullptr ? root : "/proc");
  DIR* directory = opendir(folder);
  if (directory == nullptr) return false;
  const bool by_uuid = visible != nullptr && strncmp(visible, "GPU-", 4) == 0 && strchr(visible, ',') == nullptr;
  const bool hidden = visible != nullptr && (visible[0] == '\0' || visible[0] == '-');
  int fit = 0;
  for (const dirent* entry; (entry = readdir(directory)) != nullptr;) {
    char uuid[48];
    if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof name->pci) continue;
    uuid_of_file(folder, entry->d_name, uuid, sizeof uuid);
    if (by_uuid && strcmp(uuid, visible) != 0) continue;
    ++fit;
    memcpy(name->pci, entry->d_name, strlen(entry->d_name) + 1);
    memcpy(name->uuid, uuid, sizeof uuid);
  }
  closedir(directory);
  if (fit == 1 && !hidden) {
    name->from = "proc";
    return true;
  }
  name->pci[0] = name->uuid[0] = '\0';
  name->missing = fit == 0 || hidden ? "no device is visible" : "several devices, and no CUDA library tells which";
  return false;
}

}  // namespace

DeviceName device_name() {
  DeviceName name;
  if (asked(&name, kDriver, "cuCtxGetDevice", "cuDeviceGetPCIBusId", "driver")) return name;
  if (asked(&name, kRuntime, "cudaGetDevice", "cudaDeviceGetPCIBusId", "runtime")) return name;
  if (asked(&name, kHip, "hipGetDevice", "hipDeviceGetPCIBusId", "hip")) return name;
  if (!listed(&name) && name.missing[0] == '\0') name.missing = "no CUDA library is loaded, and no driver is there";
  return name;
}

}  // namespace megatrace
