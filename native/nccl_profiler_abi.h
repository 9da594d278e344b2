// NCCL's profiler interface, versions 1 to 6, as far as it is needed: what NCCL (2.23.4 to 2.30) hands to a plug-in.
// Written from the published interface; the offsets are asserted, for a mistake here would read another's memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megatrace::profiler {

// Bits of the mask, and types of events.
enum Type : uint32_t {
  kGroup = 1u << 0, kColl = 1u << 1, kP2p = 1u << 2, kProxyOp = 1u << 3, kProxyStep = 1u << 4, kProxyCtrl = 1u << 5,
  kKernelCh = 1u << 6, kNetPlugin = 1u << 7, kGroupApi = 1u << 8, kCollApi = 1u << 9, kP2pApi = 1u << 10,
  kKernelLaunch = 1u << 11, kCeColl = 1u << 12, kCeSync = 1u << 13, kCeBatch = 1u << 14,
};

enum State : int { kSendWait = 9, kGroupEnds = 24 };

struct CollV1 {
  const char* name;
  uint64_t comm_hash, seq;
  uint8_t func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  uint8_t datatype;
  uint32_t op;
  size_t traffic;
  uint8_t channels, warps, algo, proto;
  int is_collnet, is_nvls;
};
struct P2pV1 {
  const char* name;
  uint64_t comm_hash;
  uint8_t func;
  void* buffer;
  uint8_t datatype;
  size_t count;
  int peer;
};
struct CollV2 {
  const char* name;
  uint64_t comm_hash, seq;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
  size_t traffic;
  uint8_t channels, warps;
  const char *algo, *proto;
};
struct P2pV2 {
  const char* name;
  uint64_t comm_hash;
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
};
struct CollV3 {
  const char* name;
  uint64_t comm_hash, seq;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels, warps;
  const char *algo, *proto;
};
struct CollV4 {
  uint64_t seq;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels, warps;
  const char *algo, *proto;
  void* parent_group;  // from version 5
};
struct P2pV4 {
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
  void* parent_group;  // from version 5
};
struct ProxyOp {
  int32_t pid;
  uint8_t channel;
  int peer, steps, chunk, is_send;
};
struct KernelCh {
  uint8_t channel;
  uint64_t timer;  // the device's; from version 4
};
struct CollApi {
  const char* func;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool captured;
};
struct P2pApi {
  const char* func;
  size_t count;
  const char* datatype;
  void* stream;
  bool captured;
};
struct CeColl {
  uint64_t seq;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char *datatype, *sync;
  bool intra;
  uint32_t batch, batches, number;
  void* stream;
};
struct NetPlugin {
  int64_t id;
  void* data;
};

template <class Type_, class Coll, class P2p>
struct Descr {
  Type_ type;
  void* parent;
  int rank;
  union {
    Coll coll;
    P2p p2p;
    ProxyOp proxy_op;
    int step;
    KernelCh kernel;
    NetPlugin net;
    CollApi coll_api;  // these three only in versions 5 and 6, ce_coll only in 6
    P2pApi p2p_api;
    CeColl ce_coll;
  };
};

using DescrV1 = Descr<uint8_t, CollV1, P2pV1>;
using DescrV2 = Descr<uint8_t, CollV2, P2pV2>;
using DescrV3 = Descr<uint8_t, CollV3, P2pV2>;
using DescrV4 = Descr<uint8_t, CollV4, P2pV4>;
using DescrV5 = Descr<uint64_t, CollV4, P2pV4>;
using DescrV6 = DescrV5;

static_assert(offsetof(DescrV1, parent) == 8 && offsetof(DescrV1, rank) == 16 && offsetof(DescrV1, coll) == 24);
static_assert(offsetof(DescrV5, parent) == 8 && offsetof(DescrV5, rank) == 16 && offsetof(DescrV5, coll) == 24);
static_assert(offsetof(CollV1, func) == 24 && offsetof(CollV1, count) == 48 && offsetof(CollV1, datatype) == 60);
static_assert(offsetof(CollV1, traffic) == 72 && offsetof(CollV1, channels) == 80 && sizeof(CollV1) == 96);
static_assert(offsetof(CollV2, datatype) == 64 && offsetof(CollV2, channels) == 80 && sizeof(CollV2) == 104);
static_assert(offsetof(CollV3, datatype) == 64 && offsetof(CollV3, channels) == 72 && sizeof(CollV3) == 96);
static_assert(offsetof(CollV4, count) == 32 && offsetof(CollV4, datatype) == 48 && offsetof(CollV4, channels) == 56);
static_assert(offsetof(P2pV1, datatype) == 32 && offsetof(P2pV1, count) == 40 && offsetof(P2pV1, peer) == 48);
static_assert(offsetof(P2pV2, datatype) == 32 && offsetof(P2pV2, count) == 40 && offsetof(P2pV2, peer) == 48);
static_assert(offsetof(P2pV4, datatype) == 16 && offsetof(P2pV4, count) == 24 && offsetof(P2pV4, peer) == 32);
static_assert(offsetof(P2pV4, channels) == 36 && offsetof(P2pV4, parent_group) == 40);
static_assert(offsetof(ProxyOp, channel) == 4 && offsetof(ProxyOp, peer) == 8 && offsetof(ProxyOp, is_send) == 20);
static_assert(offsetof(KernelCh, timer) == 8 && offsetof(CollApi, stream) == 32 && offsetof(P2pApi, stream) == 24);
static_assert(offsetof(CeColl, datatype) == 48 && offsetof(CeColl, intra) == 64 && offsetof(CeColl, stream) == 80);

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
using InitV1 = int (*)(void** context, int* mask);
using InitV4 = int (*)(void** context, int* mask, const char* name, uint64_t hash, int nodes, int ranks, int rank,
                       Logger log);
using InitV5 = int (*)(void** context, uint64_t id, int* mask, const char* name, int nodes, int ranks, int rank,
                       Logger log);

// The arguments of a state are a union of eight bytes or, up to version 3, {size_t, int}; its first eight are the size.
template <class Init, class D>
struct Plugin {
  const char* name;
  Init init;
  int (*start)(void* context, void** handle, D* descr);
  int (*stop)(void* handle);
  int (*record)(void* handle, int state, void* arguments);
  int (*finalize)(void* context);
};
static_assert(sizeof(Plugin<InitV1, DescrV1>) == 48);

}  // namespace megatrace::profiler
