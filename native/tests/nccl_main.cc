// Runs nccl_job: linked with it, or (LOADED) loading it with RTLD_LOCAL, as Python loads libtorch.
#include <cstdio>
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>

extern "C" int job(int count, char** words);

int main(int count, char** words) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // ranks wait for each other in a loop: not for longer than the test lives
#ifdef LOADED
  void* library = dlopen(LOADED, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  return reinterpret_cast<int (*)(int, char**)>(dlsym(library, "job"))(count, words);
#else
  return job(count, words);
#endif
}
