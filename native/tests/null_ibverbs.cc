// A libibverbs.so.1 whose requests are done at once, so that what a request costs is what recording it costs
// (verbs_bench.cc).
#include <cstdlib>
#include <cstring>

#include "../verbs_abi.h"

using namespace megatrace::verbs;

namespace {

constexpr uint32_t kNumber = 100;
Device g_device;

int post_send(Qp*, SendRequest*, SendRequest**) { return 0; }
int poll_cq(Cq*, int, Completion* out) {
  memset(out, 0, sizeof *out);
  out->qp_num = kNumber;
  return 1;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Device** ibv_get_device_list(int*) {
  static Device* list[] = {&g_device, nullptr};
  strcpy(g_device.name, "null_0");
  return list;
}
EXPORT Context* ibv_open_device(Device* device) {
  auto* context = static_cast<Context*>(calloc(1, sizeof(Context)));
  context->device = device;
  context->ops.post_send = post_send;
  context->ops.poll_cq = poll_cq;
  return context;
}
EXPORT void* ibv_alloc_pd(Context* context) { return context; }
EXPORT Cq* ibv_create_cq(Context* context, int, void*, void*, int) {
  static Cq queues[2];
  static int made = 0;
  queues[made].context = context;
  return &queues[made++];
}
EXPORT Qp* ibv_create_qp(void* pd, QpInit*) {
  static Qp pairs[2];
  static int made = 0;
  pairs[made].context = static_cast<Context*>(pd);
  pairs[made].qp_num = kNumber;
  return &pairs[made++];
}
