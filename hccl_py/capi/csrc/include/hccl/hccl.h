/* HCCL's C API on CPUs: collectives between processes, over shared memory, Ethernet and RDMA.
 *
 * Names, types, values and meanings are those of HCCL for Gaudi, and of NCCL where HCCL has none
 * (hcclCommInitRankConfig and all below it). "Device" memory is host memory: any pointer will do.
 *
 * Result: every call returns hcclSuccess, or a code; hcclGetLastErrorMessage() then has the text.
 * Threads: any thread may call any function at any time, with any communicator.
 * Streams: a call with a stream returns when it is queued, and runs after what the stream had
 * before. With the stream NULL it runs at once, and returns when it has ended. Order: all ranks
 * make the collectives of a communicator in the same order. Buffers belong to a call until it has
 * ended. They must not overlap, except where "in place". A count of 0 is allowed, also with NULL as
 * the buffer. */
#ifndef HCCL_H_
#define HCCL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HCCL_MAJOR 2
#define HCCL_MINOR 6
#define HCCL_PATCH 4
#define HCCL_SUFFIX ""
#define HCCL_VERSION_CODE 2604
#define HCCL_VERSION(X, Y, Z) ((X) * 1000 + (Y) * 100 + (Z))
#define HCCL_UNIQUE_ID_MAX_BYTES 1024
#define HCCL_HOST_ONLY 1 /* this library; HCCL for Gaudi does not define it */

typedef void* hcclComm_t;   /* a communicator, for this rank; not an address */
typedef void* hcclStream_t; /* a stream: of hcclStreamCreate or synStreamCreateGeneric */

typedef struct {
  uint8_t internal[HCCL_UNIQUE_ID_MAX_BYTES];
  size_t length; /* 0: every rank takes the id of HCCL_COMM_ID=address:port */
} hcclUniqueId;

typedef enum {
  hcclSum = 0,
  hcclProd = 1,
  hcclMin = 2,
  hcclMax = 3,
  hcclAvg = 4, /* the sum, divided once by the number of ranks; integers round towards 0 */
  hcclOpNone = 5,
  hcclMaxRedOp = 0x7fffffff, /* beyond hcclOpNone: of hcclRedOpCreatePreMulSum */
  hcclMinRedOp = -0x7fffffff /* so that any int may be passed, also in C++ */
} hcclRedOp_t;

typedef enum {
  hcclUninitialized = -1,
  hcclSuccess = 0,
  hcclNoDeviceFound = 1,
  hcclUnsupported = 2,
  hcclOutOfMemory = 3,
  hcclUnhandledSynapseError = 4,
  hcclSystemError = 5, /* ranks could not connect; a deadline passed; no Python was found */
  hcclInternalError = 6,
  hcclInvalidArgument = 7, /* nothing was sent, and the communicator is unchanged */
  hcclInvalidUsage = 8,    /* ranks made different calls; a call that is not possible now */
  hcclSocketError = 9,     /* a rank died, left, or is out of reach */
  hcclLibfabricError = 10,
  hcclTryAgainError = 11,
  hcclBusy = 12, /* a nonblocking communicator is still being made; a stream has work */
  hcclNumResults = 13,
  hcclStreamError = 14, /* the communicator was aborted */
  hcclSynapseTerminated = 15,
  hcclPortDown = 16,
  hcclMaxResult = 0x7fffffff
} hcclResult_t;

typedef enum {
  hcclInt8 = 0,
  hcclChar = 0,
  hcclUint8 = 1,
  hcclInt32 = 2,
  hcclInt = 2,
  hcclUint32 = 3,
  hcclInt64 = 4,
  hcclUint64 = 5,
  hcclFloat16 = 6,
  hcclHalf = 6,
  hcclFloat32 = 7,
  hcclFloat = 7,
  hcclFloat64 = 8,
  hcclDouble = 8,
  hcclBfloat16 = 9,
  hcclNumTypes = 10,
  hcclMaxDataType = 0x7fffffff,
  hcclMinDataType = -0x7fffffff
} hcclDataType_t;

/* ---- Version and errors */

/* HCCL_VERSION_CODE of the library. */
hcclResult_t hcclGetVersion(int* version);
/* One line for a code; never NULL. */
const char* hcclGetErrorString(hcclResult_t result);
/* The text of this thread's last error, until its next one; NULL: there was none. */
const char* hcclGetLastErrorMessage(void);
/* hcclSuccess, hcclBusy, or why the communicator failed. Later calls return that again. */
hcclResult_t hcclCommGetAsyncError(hcclComm_t comm, hcclResult_t* asyncError);
/* Its text; NULL: it has not failed. comm NULL: of the last communicator that failed. */
const char* hcclCommGetAsyncErrorMessage(hcclComm_t comm);

/* ---- Communicators */

/* One process makes an id and sends it to all ranks; it lives until they are connected. */
hcclResult_t hcclGetUniqueId(hcclUniqueId* uniqueId);
/* Connects this rank of 0..nranks-1 to all others, which call it too. An id is good for one
 * communicator. In a group it is done at the group's end, so one thread may make several ranks. */
hcclResult_t hcclCommInitRank(hcclComm_t* comm, int nranks, hcclUniqueId commId, int rank);
/* Makes ndev ranks in this process. devlist may be NULL; its values are not used. */
hcclResult_t hcclCommInitAll(hcclComm_t* comm, int ndev, const int* devlist);
/* Waits for all calls of the communicator on all streams; it takes no further ones. */
hcclResult_t hcclCommFinalize(hcclComm_t comm);
/* The same, then says goodbye and frees it. */
hcclResult_t hcclCommDestroy(hcclComm_t comm);
/* Ends its calls on all ranks with an error that names this rank, and frees it. */
hcclResult_t hcclCommAbort(hcclComm_t comm);
hcclResult_t hcclCommCount(hcclComm_t comm, int* count);
hcclResult_t hcclCommUserRank(hcclComm_t comm, int* rank);
/* 0: the host. */
hcclResult_t hcclCommSynDevice(hcclComm_t comm, int* device);

/* ---- Collectives; `count` is in elements */

/* recvbuff = the reduction of all sendbuffs, with the same bits on every rank. In place: both are
 * one. hcclProd, hcclMin, hcclMax and hcclAvg as well as hcclSum, for every type. */
hcclResult_t hcclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           hcclDataType_t datatype, hcclRedOp_t reduceOp, hcclComm_t comm,
                           void* stream_handle);
/* The same for the root only; recvbuff of others is not used. */
hcclResult_t hcclReduce(const void* sendbuff, void* recvbuff, size_t count, hcclDataType_t datatype,
                        hcclRedOp_t reduceOp, int root, hcclComm_t comm, void* stream_handle);
/* recvbuff = the reduction of block `rank` of all sendbuffs, which have nranks blocks of
 * recvcount. In place: recvbuff is block `rank` of sendbuff. */
hcclResult_t hcclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               hcclDataType_t datatype, hcclRedOp_t reduceOp, hcclComm_t comm,
                               void* stream_handle);
/* Block r of recvbuff, of sendcount elements = sendbuff of rank r. In place: sendbuff is block
 * `rank` of recvbuff. */
hcclResult_t hcclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           hcclDataType_t datatype, hcclComm_t comm, void* stream_handle);
/* recvbuff = sendbuff of the root; sendbuff of others is not used. In place: both are one. */
hcclResult_t hcclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           hcclDataType_t datatype, int root, hcclComm_t comm, void* stream_handle);
hcclResult_t hcclBcast(void* buff, size_t count, hcclDataType_t datatype, int root, hcclComm_t comm,
                       void* stream_handle);
/* Block r of recvbuff = block `rank` of sendbuff of rank r. count: of the whole buffer, a multiple
 * of nranks. In place: both are one. */
hcclResult_t hcclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                          hcclDataType_t datatype, hcclComm_t comm, void* stream_handle);
/* Ends when every rank has made it. */
hcclResult_t hcclBarrier(hcclComm_t comm, void* stream_handle);

/* ---- Point to point; both sides with the same count. In a group, calls with any peers in any
 * order cannot deadlock, this rank itself included. */
hcclResult_t hcclSend(const void* sendbuff, size_t count, hcclDataType_t datatype, int peer,
                      hcclComm_t comm, void* stream);
hcclResult_t hcclRecv(void* recvbuff, size_t count, hcclDataType_t datatype, int peer,
                      hcclComm_t comm, void* stream);

/* ---- Groups: calls of this thread between the two begin together at hcclGroupEnd, which returns
 * the first error of any. Of nested groups only the outermost counts. */
hcclResult_t hcclGroupStart(void);
hcclResult_t hcclGroupEnd(void);

/* ---- Beyond HCCL, as in NCCL */

typedef struct {
  size_t size;      /* of this struct: HCCL_CONFIG_INITIALIZER sets it */
  int blocking;     /* 0: the call that makes it returns at once; hcclCommGetAsyncError: hcclBusy */
  double timeout_s; /* for connecting, and of every call; 0: 600 */
  const char* name; /* for messages; NULL: "default" */
} hcclConfig_t;
#define HCCL_CONFIG_INITIALIZER {sizeof(hcclConfig_t), 1, 0.0, NULL}

/* config may be NULL. */
hcclResult_t hcclCommInitRankConfig(hcclComm_t* comm, int nranks, hcclUniqueId commId, int rank,
                                    hcclConfig_t* config);
#define HCCL_SPLIT_NOCOLOR (-1) /* this rank gets NULL as newcomm */
/* A communicator of all ranks of one color, sorted by key; all ranks of comm call it. Groups: as
 * hcclCommInitRank. Nonblocking: no other call of comm until the new one is made; a rank without a
 * color waits all the same. */
hcclResult_t hcclCommSplit(hcclComm_t comm, int color, int key, hcclComm_t* newcomm,
                           hcclConfig_t* config);
#define HCCL_SHRINK_DEFAULT 0
#define HCCL_SHRINK_ABORT 1 /* end the running calls of comm first */
/* A communicator without the ranks excluded and those that died; the remaining ranks call it.
 * Groups: as hcclCommInitRank. */
hcclResult_t hcclCommShrink(hcclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            hcclComm_t* newcomm, hcclConfig_t* config, int shrinkFlags);

/* Memory that the ranks of a node read and write in place: large messages are faster from it. */
hcclResult_t hcclMemAlloc(void** ptr, size_t size);
hcclResult_t hcclMemFree(void* ptr);
/* For programs that call them: they make no call faster. They check their arguments, and hand out
 * and take back a handle. Memory of hcclMemAlloc is registered from the start, for all
 * communicators; all other memory stays what it is. */
hcclResult_t hcclCommRegister(hcclComm_t comm, void* buff, size_t size, void** handle);
hcclResult_t hcclCommDeregister(hcclComm_t comm, void* handle);

typedef enum { hcclScalarDevice = 0, hcclScalarHostImmediate = 1 } hcclScalarResidence_t;
/* An op: the sum of each rank's elements times its *scalar, which has the type `datatype`, a
 * floating-point one, and is read now or, with hcclScalarDevice, when the call runs. */
hcclResult_t hcclRedOpCreatePreMulSum(hcclRedOp_t* op, void* scalar, hcclDataType_t datatype,
                                      hcclScalarResidence_t residence, hcclComm_t comm);
hcclResult_t hcclRedOpDestroy(hcclRedOp_t op, hcclComm_t comm);

/* ---- Streams: ordered queues. libSynapse's are the same objects. */
hcclResult_t hcclStreamCreate(hcclStream_t* stream);
/* Waits for its work. */
hcclResult_t hcclStreamDestroy(hcclStream_t stream);
/* Waits until all that was queued has ended; returns its first error since the last wait. */
hcclResult_t hcclStreamSynchronize(hcclStream_t stream);
/* hcclBusy: something has not ended; otherwise what hcclStreamSynchronize would return. */
hcclResult_t hcclStreamQuery(hcclStream_t stream);
/* Queues a function of the program, which must not call HCCL. */
hcclResult_t hcclStreamHostFunction(hcclStream_t stream, void (*function)(void*), void* argument);

/* ---- Events: marks in a stream, with the time at which it got there */
typedef void* hcclEvent_t;
hcclResult_t hcclEventCreate(hcclEvent_t* event);
hcclResult_t hcclEventDestroy(hcclEvent_t event);
/* Marks what the stream has now; stream NULL: now. */
hcclResult_t hcclEventRecord(hcclEvent_t event, hcclStream_t stream);
/* Both at once for an event that was not recorded. */
hcclResult_t hcclEventSynchronize(hcclEvent_t event);
hcclResult_t hcclEventQuery(hcclEvent_t event); /* hcclSuccess or hcclBusy */
/* What is queued on the stream from now on waits for the event as it is recorded now. */
hcclResult_t hcclStreamWaitEvent(hcclStream_t stream, hcclEvent_t event);
hcclResult_t hcclEventElapsedTime(uint64_t* nanoseconds, hcclEvent_t start, hcclEvent_t end);

#ifdef __cplusplus
}
#endif
#endif
