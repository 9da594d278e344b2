// The few parts of the verbs interface that NCCL and we touch, declared here so that no RDMA header is needed to build.
// The layout is frozen by libibverbs' ABI (symbol version IBVERBS_1.1, unchanged since 2006); the offsets below were
// compared with rdma-core 44's verbs.h, and a compiler that lays them out differently stops here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megatrace::verbs {

struct Cq;
struct Qp;
struct SendRequest;
struct Completion;

using PollCq = int (*)(Cq* cq, int entries, Completion* completions);
using PostSend = int (*)(Qp* qp, SendRequest* request, SendRequest** bad);

struct ContextOps {
  void* other[11];
  PollCq poll_cq;
  void* more[13];
  PostSend post_send;
  void* post_recv;
  void* rest[5];
};

struct Device {
  void* ops[2];
  int node_type;
  int transport_type;
  char name[64];
};

struct Context {
  Device* device;
  ContextOps ops;
};

struct Cq {
  Context* context;
};

struct Qp {
  Context* context;
  void* qp_context;
  void* pd;
  void* send_cq;
  void* recv_cq;
  void* srq;
  uint32_t handle;
  uint32_t qp_num;
};

struct Sge {
  uint64_t address;
  uint32_t length;
  uint32_t key;
};

struct SendRequest {
  uint64_t wr_id;
  SendRequest* next;
  Sge* sg_list;
  int num_sge;
  int opcode;
  unsigned send_flags;
};

struct Completion {
  uint64_t wr_id;
  int status;
  int opcode;
  uint32_t vendor_err;
  uint32_t byte_len;
  uint32_t imm_data;
  uint32_t qp_num;
  uint8_t rest[16];
};

struct GlobalRoute {
  uint64_t gid[2];  // as on the wire: big endian
  uint32_t flow_label;
  uint8_t sgid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
};

struct AddressHandle {
  GlobalRoute grh;
  uint16_t dlid;
  uint8_t sl;
  uint8_t src_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port_num;
};

struct QpAttributes {
  uint32_t before[7];
  uint32_t dest_qp_num;
  uint32_t between[6];
  AddressHandle ah;
};

struct QpInit {
  void* pointers[4];
  uint32_t capabilities[5];
  int qp_type;
  int sq_sig_all;
};

constexpr unsigned kSignaled = 1u << 1;       // IBV_SEND_SIGNALED
constexpr int kReceive = 1 << 7;              // IBV_WC_RECV: a completion of a receive
constexpr int kAddressGiven = 1 << 7;         // IBV_QP_AV
constexpr int kDestinationGiven = 1 << 20;    // IBV_QP_DEST_QPN

static_assert(sizeof(void*) == 8, "64-bit only");
static_assert(offsetof(Context, ops) == 8);
static_assert(offsetof(ContextOps, poll_cq) == 88 && offsetof(ContextOps, post_send) == 200);
static_assert(sizeof(ContextOps) == 256);
static_assert(offsetof(Device, name) == 24);
static_assert(offsetof(Qp, qp_num) == 52);
static_assert(sizeof(Sge) == 16 && offsetof(Sge, length) == 8);
static_assert(offsetof(SendRequest, sg_list) == 16 && offsetof(SendRequest, num_sge) == 24);
static_assert(offsetof(SendRequest, opcode) == 28 && offsetof(SendRequest, send_flags) == 32);
static_assert(offsetof(Completion, status) == 8 && offsetof(Completion, opcode) == 12);
static_assert(offsetof(Completion, vendor_err) == 16 && offsetof(Completion, qp_num) == 28);
static_assert(sizeof(Completion) == 48);
static_assert(offsetof(QpAttributes, dest_qp_num) == 28 && offsetof(QpAttributes, ah) == 56);
static_assert(offsetof(AddressHandle, dlid) == 24 && offsetof(AddressHandle, is_global) == 29);
static_assert(offsetof(AddressHandle, port_num) == 30 && offsetof(GlobalRoute, sgid_index) == 20);
static_assert(offsetof(QpInit, qp_type) == 52 && offsetof(QpInit, sq_sig_all) == 56);

}  // namespace megatrace::verbs
