// The functions of NCCL that are recorded, for nccl_preload.cc: prototype, what it does, where its arguments say so.
// Included more than once, with MT_CALL defined:
//   MT_CALL(name, operation, (parameters), (arguments), count, type, peer, root)
// `comm` and `stream` are called so in every prototype. Enumerations are int, streams and configurations void*. RCCL has
// the same functions under the same names, and AllToAll before NCCL had AlltoAll. MT_BOTH: also with a configuration behind
// all other arguments (NCCL 2.32).
#define MT_LIST(...) __VA_ARGS__
#define MT_BOTH(name, operation, parameters, arguments, ...)                                            \
  MT_CALL(name, operation, parameters, arguments, __VA_ARGS__)                                          \
  MT_CALL(name##Config, operation, (MT_LIST parameters, const void* config), (MT_LIST arguments, config), \
          __VA_ARGS__)

MT_BOTH(AllReduce, 1, (const void* a, void* b, size_t n, int t, int o, Comm comm, void* stream),
        (a, b, n, t, o, comm, stream), n, t, -1, 0)
MT_BOTH(AllGather, 2, (const void* a, void* b, size_t n, int t, Comm comm, void* stream), (a, b, n, t, comm, stream), n,
        t, -1, 0)
MT_BOTH(ReduceScatter, 3, (const void* a, void* b, size_t n, int t, int o, Comm comm, void* stream),
        (a, b, n, t, o, comm, stream), n, t, -1, 0)
MT_BOTH(Broadcast, 4, (const void* a, void* b, size_t n, int t, int r, Comm comm, void* stream),
        (a, b, n, t, r, comm, stream), n, t, -1, r)
MT_CALL(Bcast, 4, (void* b, size_t n, int t, int r, Comm comm, void* stream), (b, n, t, r, comm, stream), n, t, -1, r)
MT_BOTH(Reduce, 5, (const void* a, void* b, size_t n, int t, int o, int r, Comm comm, void* stream),
        (a, b, n, t, o, r, comm, stream), n, t, -1, r)
MT_CALL(Send, 6, (const void* a, size_t n, int t, int p, Comm comm, void* stream), (a, n, t, p, comm, stream), n, t, p, 0)
MT_CALL(Recv, 7, (void* b, size_t n, int t, int p, Comm comm, void* stream), (b, n, t, p, comm, stream), n, t, p, 0)
MT_BOTH(AlltoAll, 8, (const void* a, void* b, size_t n, int t, Comm comm, void* stream), (a, b, n, t, comm, stream), n,
        t, -1, 0)
MT_CALL(AllToAll, 8, (const void* a, void* b, size_t n, int t, Comm comm, void* stream), (a, b, n, t, comm, stream), n,
        t, -1, 0)
MT_BOTH(Gather, 9, (const void* a, void* b, size_t n, int t, int r, Comm comm, void* stream),
        (a, b, n, t, r, comm, stream), n, t, -1, r)
MT_BOTH(Scatter, 10, (const void* a, void* b, size_t n, int t, int r, Comm comm, void* stream),
        (a, b, n, t, r, comm, stream), n, t, -1, r)
#undef MT_BOTH
#undef MT_LIST
