// A profiler plug-in of somebody else, version 5, for tests: wants CollApi, Coll and GroupApi, and checks that it gets back its
// own handles. At the end of each communicator it says on stdout how many events began and ended, and how many parents
// were its own.
#include <cstdint>
#include <cstdio>

#include "../nccl_profiler_abi.h"

using namespace megatrace::profiler;

namespace {

struct Object {
  uint64_t magic = 0xC0FFEE;
  uint64_t type = 0;
};

uint64_t g_began, g_ended, g_parents, g_wrong;
int g_contexts;

int init(void** context, uint64_t, int* mask, const char*, int, int, int, Logger) {
  *context = new Object{};
  *mask = kCollApi | kColl;
  ++g_contexts;
  return 0;
}
int start(void* context, void** handle, DescrV5* descr) {
  if (static_cast<Object*>(context)->magic != 0xC0FFEE) ++g_wrong;
  const auto* parent = static_cast<const Object*>(descr->parent);
  if (parent != nullptr) (parent->magic == 0xC0FFEE && parent->type == kCollApi ? g_parents : g_wrong) += 1;
  if (descr->type != kCollApi && descr->type != kColl) ++g_wrong;
  *handle = new Object{0xC0FFEE, descr->type};
  ++g_began;
  return 0;
}
int stop(void* handle) {
  auto* object = static_cast<Object*>(handle);
  if (object->magic != 0xC0FFEE) ++g_wrong;
  ++g_ended;
  return 0;
}
int record(void*, int, void*) { return 0; }
int finalize(void* context) {
  delete static_cast<Object*>(context);
  if (--g_contexts == 0)
    printf("chained began=%lu ended=%lu parents=%lu wrong=%lu\n", static_cast<unsigned long>(g_began),
           static_cast<unsigned long>(g_ended), static_cast<unsigned long>(g_parents),
           static_cast<unsigned long>(g_wrong));
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const Plugin<InitV5, DescrV5> ncclProfiler_v5;
const Plugin<InitV5, DescrV5> ncclProfiler_v5 = {"somebody else's", init, start, stop, record, finalize};
