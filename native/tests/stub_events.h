// How the stub of NCCL tells a profiler plug-in what happens, in the words of each version of the interface.
#pragma once

#include <atomic>
#include <cstring>

#include "../nccl_profiler_abi.h"
#include "stub_nccl.h"

using namespace megatrace::profiler;

namespace stub {

constexpr int kComms = 64, kRanks = 16;
constexpr const char* kNames[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv"};
constexpr uint8_t kOldNames[] = {4, 2, 3, 0, 6, 7};
enum What { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kSends, kReceives };

struct Meeting {  // of one communicator
  std::atomic<uint64_t> hash;
  std::atomic<uint64_t> begun[kRanks];            // collectives whose kernel began, by member
  std::atomic<uint64_t> sends[kRanks * kRanks];   // from, to
  std::atomic<uint64_t> receives[kRanks * kRanks];
};

struct Operation {
  ncclComm* comm;
  What what;
  size_t count;
  int type, peer, root;
  Stream stream;
  void *api, *event;
  uint64_t number;
};

int g_mask = 0;  // as NCCL's: one for all communicators, the plug-in keeps its address
int g_version = 0;
void* g_plugin = nullptr;
thread_local void* t_group_event = nullptr;

}  // namespace stub

struct ncclComm {
  uint64_t hash;
  int ranks, rank;
  stub::Meeting* meeting;
  void* context;
  uint64_t collectives, sends[stub::kRanks], receives[stub::kRanks], splits;
};

namespace stub {

template <class Init, class D>
const Plugin<Init, D>* plugin() {
  return static_cast<const Plugin<Init, D>*>(g_plugin);
}

bool wants(int type) { return g_plugin != nullptr && (__atomic_load_n(&g_mask, __ATOMIC_RELAXED) & type) != 0; }

template <class Init, class D>
void* start_as(ncclComm* comm, D& descr) {
  void* handle = nullptr;
  descr.rank = comm->rank;
  plugin<Init, D>()->start(comm->context, &handle, &descr);
  return handle;
}

void stop(void* handle) {
  if (handle != nullptr) plugin<InitV5, DescrV5>()->stop(handle);
}

const char* type_name(int type) { return type == 7 ? "ncclFloat32" : "ncclInt8"; }

template <class D, class Init, class Coll, class P2p>
void* given_as(const Operation& op, Coll coll, P2p p2p) {
  D descr;
  memset(static_cast<void*>(&descr), 0, sizeof descr);
  descr.parent = op.api;
  const bool message = op.what >= kSends;
  descr.type = message ? static_cast<uint8_t>(kP2p) : static_cast<uint8_t>(kColl);
  if (message) p2p(descr.p2p); else coll(descr.coll);
  return start_as<Init>(op.comm, descr);
}

// Coll or P2p: the operation is given to the device.
void* given(const Operation& op) {
  if (!wants(op.what >= kSends ? kP2p : kColl)) return nullptr;
  auto coll = [&](auto& to) {
    to.seq = op.number;
    to.count = op.count;
    to.root = op.root;
  };
  auto coll_named = [&](auto& to) {
    coll(to);
    to.func = kNames[op.what];
    to.datatype = type_name(op.type);
  };
  auto p2p = [&](auto& to) {
    to.count = op.count;
    to.peer = op.peer;
  };
  auto p2p_named = [&](auto& to) {
    p2p(to);
    to.func = kNames[op.what];
    to.datatype = type_name(op.type);
  };
  auto old_coll = [&](auto& to) {
    coll_named(to);
    to.comm_hash = op.comm->hash;
    to.channels = 1;
  };
  auto old_p2p = [&](auto& to) {
    p2p_named(to);
    to.comm_hash = op.comm->hash;
  };
  auto new_coll = [&](auto& to) {
    coll_named(to);
    to.channels = 2;
  };
  auto new_p2p = [&](auto& to) {
    p2p_named(to);
    to.channels = 2;
  };
  switch (g_version) {
    case 1:
      return given_as<DescrV1, InitV1>(
          op,
          [&](CollV1& to) {
            coll(to);
            to.comm_hash = op.comm->hash;
            to.func = kOldNames[op.what];
            to.datatype = static_cast<uint8_t>(op.type);
          },
          [&](P2pV1& to) {
            p2p(to);
            to.comm_hash = op.comm->hash;
            to.func = kOldNames[op.what];
            to.datatype = static_cast<uint8_t>(op.type);
          });
    case 2: return given_as<DescrV2, InitV1>(op, old_coll, old_p2p);
    case 3: return given_as<DescrV3, InitV1>(op, old_coll, old_p2p);
    case 4: return given_as<DescrV4, InitV4>(op, new_coll, new_p2p);
    default: return given_as<DescrV5, InitV5>(op, new_coll, new_p2p);
  }
}

// CollApi or P2pApi: the program makes the call.
void* api(const Operation& op) {
  const bool message = op.what >= kSends;
  if (g_version < 5 || !wants(message ? kP2pApi : kCollApi)) return nullptr;
  DescrV5 descr;
  memset(static_cast<void*>(&descr), 0, sizeof descr);
  descr.parent = t_group_event;
  descr.type = message ? kP2pApi : kCollApi;
  if (message)
    descr.p2p_api = {kNames[op.what], op.count, type_name(op.type), op.stream, false};
  else
    descr.coll_api = {kNames[op.what], op.count, type_name(op.type), op.root, op.stream, false};
  return start_as<InitV5>(op.comm, descr);
}

template <class Init, class D, class F>
void* told_as(ncclComm* comm, uint32_t type, void* parent, F fill) {
  D descr;
  memset(static_cast<void*>(&descr), 0, sizeof descr);
  descr.type = static_cast<decltype(descr.type)>(type);
  descr.parent = parent;
  fill(descr);
  return start_as<Init>(comm, descr);
}

// An event of a type that all versions have alike.
template <class F>
void* told(ncclComm* comm, uint32_t type, void* parent, F fill) {
  if (!wants(static_cast<int>(type))) return nullptr;
  switch (g_version) {
    case 1: return told_as<InitV1, DescrV1>(comm, type, parent, fill);
    case 2: return told_as<InitV1, DescrV2>(comm, type, parent, fill);
    case 3: return told_as<InitV1, DescrV3>(comm, type, parent, fill);
    case 4: return told_as<InitV4, DescrV4>(comm, type, parent, fill);
    default: return told_as<InitV5, DescrV5>(comm, type, parent, fill);
  }
}

void* kernel(const Operation& op, uint8_t channel) {
  if (g_version < 3 || op.event == nullptr) return nullptr;
  return told(op.comm, kKernelCh, op.event, [&](auto& descr) { descr.kernel.channel = channel; });
}

}  // namespace stub
