// What a recorded call costs, beside a clock, a copy of 64 bytes and a line as a logger writes it: ns of CPU, the
// least of many rounds, in which all take turns. Preload libmegatrace_preload.so; the argument is the plug-in.
// Prints JSON. Each figure is that of one call of the program, the loop around it taken off.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>

#include "../nccl_profiler_abi.h"
#include "stub_nccl.h"

using namespace megatrace::profiler;

extern "C" int pncclAllReduce(const void*, void*, size_t, int, int, ncclComm_t, Stream);

namespace {

constexpr int kCalls = 20000, kRounds = 41;

const Plugin<InitV5, DescrV5>* g_plugin;
void* g_context;
ncclComm_t g_comm;
char g_lines[1 << 16];
alignas(64) char g_copies[1 << 20];
size_t g_at;

uint64_t ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

void nothing(int i) { asm volatile("" : : "r"(i)); }

void read_clock(int) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  asm volatile("" : : "m"(now));
}

void copy(int i) {
  char record[64];
  memset(record, i, sizeof record);
  asm volatile("" : : "r"(record) : "memory");
  memcpy(g_copies + (g_at++ % (sizeof g_copies / 64)) * 64, record, sizeof record);
}

// A logger as it is written without thought of its cost: the time as text, then the line, then into a buffer.
void format(int i) {
  timespec now;
  char time[64], line[256];
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(time, sizeof time, "[%ld.%09ld]", now.tv_sec, now.tv_nsec);
  const int size = snprintf(line, sizeof line, "%s [Rank %d] Fun %s Data %zu stream %p opCount %lx groupHash %ld\n", time,
                            4, "AllReduce", size_t{1024}, reinterpret_cast<void*>(0x5585C5800000),
                            static_cast<unsigned long>(i), -904L);
  memcpy(g_lines + (g_at++ % 256) * 256, line, static_cast<size_t>(size));
}

// What NCCL does for one collective: CollApi begins, Coll begins and ends, CollApi ends.
void plugin_collective(int) {
  DescrV5 api, coll;
  void *call = nullptr, *event = nullptr;
  api.type = kCollApi;
  api.parent = nullptr;
  api.rank = 0;
  api.coll_api = {"AllReduce", 1024, "ncclFloat32", 0, nullptr, false};
  g_plugin->start(g_context, &call, &api);
  coll.type = kColl;
  coll.parent = call;
  coll.rank = 0;
  coll.coll = {7, "AllReduce", nullptr, nullptr, 1024, 0, "ncclFloat32", 2, 8, "Ring", "Simple", nullptr};
  g_plugin->start(g_context, &event, &coll);
  if (event != nullptr) g_plugin->stop(event);
  if (call != nullptr) g_plugin->stop(call);
}

// What the same costs where the plug-in takes no event: filling in the descriptions.
void plugin_refused(int) {
  void* context = g_context;
  g_context = nullptr;
  plugin_collective(0);
  g_context = context;
}

void preloaded(int) { ncclAllReduce(nullptr, nullptr, 1024, 7, 0, g_comm, nullptr); }
void direct(int) { pncclAllReduce(nullptr, nullptr, 1024, 7, 0, g_comm, nullptr); }

struct Method {
  const char* name;
  void (*run)(int);
  double least;
};

}  // namespace

int main(int count, char** words) {
  void* library = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (library == nullptr) return 2;
  g_plugin = static_cast<const Plugin<InitV5, DescrV5>*>(dlsym(library, "ncclProfiler_v6"));
  int mask = 0;
  g_plugin->init(&g_context, 77, &mask, "", 1, 8, 0, nullptr);
  ncclUniqueId id;
  memset(&id, 1, sizeof id);
  ncclCommInitRank(&g_comm, 8, id, 0);
  Method methods[] = {{"loop", nothing, 1e9},           {"clock_gettime", read_clock, 1e9},
                      {"memcpy 64", copy, 1e9},         {"snprintf logger", format, 1e9},
                      {"plug-in", plugin_collective, 1e9}, {"plug-in, refused", plugin_refused, 1e9},
                      {"preload", preloaded, 1e9},      {"direct", direct, 1e9}};
  for (int round = 0; round < kRounds; ++round)
    for (Method& method : methods) {
      const uint64_t begin = ns(CLOCK_THREAD_CPUTIME_ID);
      for (int i = 0; i < kCalls; ++i) method.run(i);
      const double each = static_cast<double>(ns(CLOCK_THREAD_CPUTIME_ID) - begin) / kCalls;
      if (each < method.least) method.least = each;
    }
  const char* comma = "{";
  for (const Method& method : methods) {
    printf("%s\"%s\": %.2f", comma, method.name, method.least);
    comma = ", ";
  }
  puts("}");
  return 0;
}
