// To preload: a machine whose clock is set while a program runs. CLOCK_REALTIME is later by CLOCK_STEP_NS, which the
// program may set at any time, or by the same from the moment on at which the file CLOCK_STEP_FILE exists.
#include <cstdlib>
#include <ctime>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t clock, struct timespec* into) {
  const long result = syscall(SYS_clock_gettime, clock, into);
  if (result != 0 || clock != CLOCK_REALTIME) return static_cast<int>(result);
  const char* step = getenv("CLOCK_STEP_NS");
  const char* file = getenv("CLOCK_STEP_FILE");
  if (step == nullptr || (file != nullptr && access(file, F_OK) != 0)) return 0;
  into->tv_sec += atoll(step) / 1000000000;
  return 0;
}
