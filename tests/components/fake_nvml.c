/* A library in the place of NVIDIA's libnvidia-ml.so.1: eight H100, or as many as a file says, with faults on demand.
 *
 * FAKE_NVML names a text file that is read anew at every call, so a test breaks a GPU while a program watches:
 *
 *     count 8               GPUs that the driver lists
 *     hang 1                every call stands for ever
 *     mismatch 1            nvmlInit: the library and the kernel module are of different versions
 *     gpu 3 lost 1          this GPU has fallen off the bus
 *     gpu 3 temperature 91  any value of the table below; links as "gpu 3 link7 0"
 *     xid 3 79              an event that nvmlEventSetWait hands out once
 *
 * Declared here from the published interface (NVML API reference); only what monitoring uses. A function that is not
 * here is answered by the loader, as with a driver that is too old for it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, LOST = 15,
       MISMATCH = 18 };
enum { MOST_GPUS = 16, LINKS = 18, EVENT_XID = 8 };

typedef struct { char legacy[16]; unsigned domain, bus, device, pci, subsystem; char bus_id[32]; } PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { uint32_t field, scope; int64_t timestamp, latency; int type, result; union { double d; unsigned u;
                 unsigned long long ull; } value; } FieldValue;
typedef struct { unsigned version; uint8_t cluster[16]; int status; uint32_t clique; uint32_t state; uint32_t mask;
                 uint8_t summary; } FabricInfo;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } SramStatus;
typedef struct { void *device; unsigned long long type, data; unsigned instance, compute; } EventData;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

static const unsigned BUSES[MOST_GPUS] = {0x18, 0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb,
                                          0x1a, 0x1b, 0x3c, 0x4d, 0x5e, 0x9c, 0xbc, 0xcc};
static int initialized;
static long handed_out; /* events of the file that were handed out */

/* The value of a line that starts with `key`, or `otherwise`. */
static long long setting(const char *key, long long otherwise) {
  const char *path = getenv("FAKE_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  if (!file) return otherwise;
  char line[256];
  size_t length = strlen(key);
  long long found = otherwise;
  while (fgets(line, sizeof line, file))
    if (!strncmp(line, key, length) && line[length] == ' ') found = strtoll(line + length, NULL, 0);
  fclose(file);
  return found;
}

static long long of_gpu(long gpu, const char *name, long long otherwise) {
  char key[96];
  snprintf(key, sizeof key, "gpu %ld %s", gpu, name);
  return setting(key, otherwise);
}

static void stand_where_told(void) {
  while (setting("hang", 0)) sleep(1);
}

static long count(void) {
  long long found = setting("count", 8);
  return found < 0 ? 0 : found > MOST_GPUS ? MOST_GPUS : (long)found;
}

/* Handles are index + 1, so that none is NULL. */
static int usable(void *device, long *gpu) {
  stand_where_told();
  if (!initialized) return UNINITIALIZED;
  *gpu = (long)(intptr_t)device - 1;
  if (*gpu < 0 || *gpu >= count()) return INVALID;
  return of_gpu(*gpu, "lost", 0) ? LOST : SUCCESS;
}

#define DEVICE(device)                     \
  long gpu;                                \
  int problem = usable((device), &gpu);    \
  if (problem != SUCCESS) return problem

#define NUMBER(function, name, otherwise)                   \
  int function(void *device, unsigned *value) {             \
    DEVICE(device);                                         \
    *value = (unsigned)of_gpu(gpu, name, otherwise);        \
    return SUCCESS;                                         \
  }

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  stand_where_told();
  if (setting("mismatch", 0)) return MISMATCH;
  initialized = 1;
  return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { initialized = 0; return SUCCESS; }

const char *nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case TIMEOUT: return "Timeout";
    case LOST: return "GPU is lost";
    case MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "575.57.08"); return SUCCESS; }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { snprintf(text, size, "12.575.57.08"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12090; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *found) {
  stand_where_told();
  if (!initialized) return UNINITIALIZED;
  *found = (unsigned)count();
  return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (!initialized) return UNINITIALIZED;
  if (index >= (unsigned)count()) return INVALID;
  *device = (void *)(intptr_t)(index + 1);
  return of_gpu(index, "lost", 0) ? LOST : SUCCESS;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
  DEVICE(device);
  snprintf(text, size, "NVIDIA H100 80GB HBM3");
  return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
  DEVICE(device);
  snprintf(text, size, "GPU-00000000-0000-0000-0000-0000000000%02lx", gpu);
  return SUCCESS;
}
int nvmlDeviceGetSerial(void *device, char *text, unsigned size) {
  DEVICE(device);
  snprintf(text, size, "16500000000%02ld", gpu);
  return SUCCESS;
}
int nvmlDeviceGetVbiosVersion(void *device, char *text, unsigned size) {
  DEVICE(device);
  snprintf(text, size, "96.00.74.00.%02lld", of_gpu(gpu, "vbios", 1));
  return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(void *device, PciInfo *info) {
  DEVICE(device);
  memset(info, 0, sizeof *info);
  info->bus = BUSES[gpu];
  info->pci = 0x233010de;
  snprintf(info->legacy, sizeof info->legacy, "0000:%02x:00.0", BUSES[gpu]);
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", BUSES[gpu]);
  return SUCCESS;
}

NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
NUMBER(nvmlDeviceGetPowerUsage, "power", 112000)
NUMBER(nvmlDeviceGetPowerManagementLimit, "limit", 700000)
NUMBER(nvmlDeviceGetPcieReplayCounter, "replays", 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "generation", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "most_generation", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "most_width", 16)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", 0)

int nvmlDeviceGetIndex(void *device, unsigned *index) {
  DEVICE(device);
  *index = (unsigned)gpu;
  return SUCCESS;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
  DEVICE(device);
  *celsius = (unsigned)of_gpu(gpu, "temperature", 34);
  return sensor == 0 ? SUCCESS : INVALID;
}
int nvmlDeviceGetTemperatureThreshold(void *device, int which, unsigned *celsius) {
  static const unsigned CELSIUS[4] = {92, 89, 105, 87}; /* shutdown, slowdown, memory, GPU */
  DEVICE(device);
  if (which < 0 || which > 3) return NOT_SUPPORTED;
  *celsius = CELSIUS[which];
  return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) {
  DEVICE(device);
  *mhz = (unsigned)(clock == 2 ? of_gpu(gpu, "memory_clock", 2619) : of_gpu(gpu, "clock", 1980));
  return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
  DEVICE(device);
  *reasons = (unsigned long long)of_gpu(gpu, "reasons", 1);
  return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
  return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}
int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
  DEVICE(device);
  rates->gpu = (unsigned)of_gpu(gpu, "busy", 0);
  rates->memory = 0;
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  DEVICE(device);
  memory->total = 85520809984ULL;
  memory->used = (unsigned long long)of_gpu(gpu, "used", 655360);
  memory->free = memory->total - memory->used;
  return SUCCESS;
}
int nvmlDeviceGetEccMode(void *device, int *current, int *pending) {
  DEVICE(device);
  *current = (int)of_gpu(gpu, "ecc", 1);
  *pending = *current;
  return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *errors) {
  static const char *NAMES[2][2] = {{"corrected", "corrected_ever"}, {"uncorrected", "uncorrected_ever"}};
  DEVICE(device);
  if (kind < 0 || kind > 1 || counter < 0 || counter > 1) return INVALID;
  *errors = (unsigned long long)of_gpu(gpu, NAMES[kind][counter], 0);
  return SUCCESS;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
  DEVICE(device);
  *corrected = (unsigned)of_gpu(gpu, "remapped", 0);
  *uncorrected = (unsigned)of_gpu(gpu, "remapped_uncorrected", 0);
  *pending = (unsigned)of_gpu(gpu, "pending", 0);
  *failed = (unsigned)of_gpu(gpu, "failed", 0);
  return SUCCESS;
}
int nvmlDeviceGetSramEccErrorStatus(void *device, SramStatus *status) {
  DEVICE(device);
  memset(status->counts, 0, sizeof status->counts);
  status->exceeded = (unsigned)of_gpu(gpu, "sram", 0);
  return SUCCESS;
}
int nvmlDeviceValidateInforom(void *device) {
  DEVICE(device);
  return of_gpu(gpu, "inforom", 0) ? 14 : SUCCESS;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
  char name[32];
  DEVICE(device);
  if (link >= LINKS) return INVALID;
  snprintf(name, sizeof name, "link%u", link);
  *active = (unsigned)of_gpu(gpu, name, 1);
  return SUCCESS;
}
int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, int counter, unsigned long long *value) {
  char name[48];
  DEVICE(device);
  if (link >= LINKS) return INVALID;
  snprintf(name, sizeof name, "link%u_error%d", link, counter);
  *value = (unsigned long long)of_gpu(gpu, name, 0);
  return SUCCESS;
}
int nvmlDeviceGetGpuFabricInfoV(void *device, FabricInfo *info) {
  DEVICE(device);
  info->status = (int)of_gpu(gpu, "fabric_status", 0);
  info->state = (uint32_t)of_gpu(gpu, "fabric_state", 3);
  info->clique = 0;
  info->mask = 0;
  return SUCCESS;
}
int nvmlDeviceGetFieldValues(void *device, int many, FieldValue *values) {
  DEVICE(device);
  for (int i = 0; i < many; ++i) {
    values[i].result = SUCCESS;
    values[i].type = 1;
    if (values[i].field == 230) values[i].value.u = (unsigned)of_gpu(gpu, "action", 0);
    else if (values[i].field == 90) values[i].value.u = (unsigned)of_gpu(gpu, "link_speed", 26562);
    else if (values[i].field == 82) values[i].value.u = (unsigned)of_gpu(gpu, "memory_temperature", 41);
    else values[i].result = NOT_SUPPORTED;
  }
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *many, Process *processes) {
  DEVICE(device);
  unsigned pid = (unsigned)of_gpu(gpu, "process", 0), room = *many;
  *many = pid ? 1 : 0;
  if (!pid) return SUCCESS;
  if (room < 1) return 7; /* too little room */
  processes[0] = (Process){pid, (unsigned long long)of_gpu(gpu, "used", 655360), ~0U, ~0U};
  return SUCCESS;
}

int nvmlEventSetCreate(void **set) { *set = (void *)1; handed_out = 0; return initialized ? SUCCESS : UNINITIALIZED; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) {
  DEVICE(device);
  *types = EVENT_XID;
  return SUCCESS;
}
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
  DEVICE(device);
  (void)types;
  (void)set;
  return SUCCESS;
}
/* Looks at the file ten times a second: an event written now is handed out within 0.1 s. */
int nvmlEventSetWait_v2(void *set, EventData *data, unsigned milliseconds) {
  (void)set;
  for (unsigned waited = 0;; waited += 100) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    long seen = 0, gpu;
    long long code;
    while (file && fgets(line, sizeof line, file)) {
      if (sscanf(line, "xid %ld %lld", &gpu, &code) != 2 || ++seen <= handed_out) continue;
      fclose(file);
      handed_out = seen;
      memset(data, 0, sizeof *data);
      data->device = (void *)(intptr_t)(gpu + 1);
      data->type = EVENT_XID;
      data->data = (unsigned long long)code;
      return SUCCESS;
    }
    if (file) fclose(file);
    if (waited >= milliseconds) return TIMEOUT;
    usleep(100000);
  }
}
