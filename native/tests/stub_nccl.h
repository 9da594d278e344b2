// What the tests need of NCCL's interface: our own declarations of public functions.
#pragma once

#include <cstddef>

extern "C" {
struct ncclComm;
using ncclComm_t = ncclComm*;
struct ncclUniqueId {
  char internal[128];
};
using Stream = void*;
int ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, void* config);
int ncclCommCount(ncclComm_t comm, int* count);
int ncclCommUserRank(ncclComm_t comm, int* rank);
int ncclCommDestroy(ncclComm_t comm);
int ncclCommAbort(ncclComm_t comm);
int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op, ncclComm_t comm, Stream stream);
int ncclAllGather(const void* send, void* receive, size_t count, int type, ncclComm_t comm, Stream stream);
int ncclReduceScatter(const void* send, void* receive, size_t count, int type, int op, ncclComm_t comm, Stream stream);
int ncclBroadcast(const void* send, void* receive, size_t count, int type, int root, ncclComm_t comm, Stream stream);
int ncclSend(const void* buffer, size_t count, int type, int peer, ncclComm_t comm, Stream stream);
int ncclRecv(void* buffer, size_t count, int type, int peer, ncclComm_t comm, Stream stream);
int ncclGroupStart();
int ncclGroupEnd();
// Not NCCL's: waits until the device has done everything.
void stubSynchronize();
}
