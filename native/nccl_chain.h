// Another profiler plug-in, for NCCL takes one: MEGATRACE_CHAIN_PROFILER names it, as NCCL_PROFILER_PLUGIN did before.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

#include "nccl_profiler_abi.h"

namespace megatrace {

struct Chained {
  int (*start)(void*, void**, void*) = nullptr;
  int (*stop)(void*) = nullptr;
  int (*record)(void*, int, void*) = nullptr;
  int (*finalize)(void*) = nullptr;
  void* init = nullptr;
};

// Its functions, none where there is no other plug-in, or none that speaks this version (5 and 6 are alike).
inline Chained chained_profiler(int version) {
  const char* name = getenv("MEGATRACE_CHAIN_PROFILER");
  if (name == nullptr || name[0] == '\0') return {};
  char path[1024];
  snprintf(path, sizeof path, "libnccl-profiler-%s.so", name);
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* table = nullptr;
  for (int at = version; library != nullptr && table == nullptr && at >= (version >= 5 ? 5 : version); --at) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", at);
    table = dlsym(library, symbol);
  }
  if (table == nullptr) {
    fprintf(stderr, "megatrace: the profiler plug-in %s is left out: %s\n", name,
            library == nullptr ? "it cannot be loaded" : "it does not speak the version of this NCCL");
    return {};
  }
  const auto* theirs = static_cast<const profiler::Plugin<void*, void>*>(table);
  return {theirs->start, theirs->stop, theirs->record, theirs->finalize, theirs->init};
}

}  // namespace megatrace
