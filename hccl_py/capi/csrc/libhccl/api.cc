// The functions of hccl.h for communicators and their calls; group.cc and streams_api.cc have the
// others.
#include "libhccl/api.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hccl {

Handles<Communicator>& communicators() {
  static auto& all = *new Handles<Communicator>(1, "communicator");
  return all;
}

namespace {

thread_local std::string last_text;
thread_local std::string async_text;

template <typename Body>
hcclResult_t call(const char* function, Body&& body) {
  return guarded(function, [&] {
    try {
      body();
    } catch (const Error& error) {
      note_in_group({error.code, std::string(function) + ": " + error.text});
      throw;
    }
  });
}

template <typename Value>
void require(Value* value, const char* name) {
  if (value == nullptr)
    reject(std::string(name) + ": expected an address for the result, got NULL");
}

struct Config {
  bool is_blocking = true;
  double timeout_s = 600;
  std::string name = "default";
};

Config read(const hcclConfig_t* given) {
  Config config;
  if (given == nullptr) return config;
  if (given->size != sizeof(hcclConfig_t)) {
    reject("config: expected HCCL_CONFIG_INITIALIZER, got a size of " +
           std::to_string(given->size));
  }
  if (!(given->timeout_s >= 0 && given->timeout_s <= 1e8)) {
    reject("config: expected a timeout_s of 0..1e8, got " + std::to_string(given->timeout_s));
  }
  config.is_blocking = given->blocking != 0;
  if (given->timeout_s > 0) config.timeout_s = given->timeout_s;
  if (given->name != nullptr) config.name = given->name;
  return config;
}

void check_rank(int nranks, int rank) {
  if (nranks < 1) reject("nranks: expected 1 or more, got " + std::to_string(nranks));
  if (rank < 0 || rank >= nranks) {
    reject("rank: expected 0.." + std::to_string(nranks - 1) + ", got " + std::to_string(rank));
  }
}

void make_in_background(hcclComm_t* comm, const CommunicatorPtr& made,
                        std::function<void()> connect) {
  *comm = communicators().add(made);
  std::thread([connect = std::move(connect), made] {
    try {
      connect();
    } catch (Error& error) {
      made->fail(std::move(error));
    }
  }).detach();
}

void make(hcclComm_t* comm, int nranks, const hcclUniqueId& id, int rank, const Config& config) {
  check_rank(nranks, rank);
  if (id.length > HCCL_UNIQUE_ID_MAX_BYTES) {
    reject("commId: expected an id of hcclGetUniqueId, got one of length " +
           std::to_string(id.length));
  }
  require_python();
  *comm = nullptr;
  auto made = std::make_shared<Communicator>();
  auto connect = [made, nranks, id, rank, config] {
    made->connect(id, rank, nranks, config.timeout_s, config.name);
  };
  if (!config.is_blocking) return make_in_background(comm, made, connect);
  make_ranks([=] {
    connect();
    *comm = communicators().add(made);
  });
}

// For calls that end or replace the communicator: none of its own runs.
CommunicatorPtr idle(hcclComm_t comm) {
  CommunicatorPtr found = communicators().find(comm);
  finish_streams(*found);
  return found;
}

// What Python makes of another communicator: now, at the group's end, or in the background.
template <typename Make>
void make_from(hcclComm_t* comm, bool is_blocking, double timeout_s, Make&& call) {
  auto made = std::make_shared<Communicator>();
  auto connect = [made, timeout_s, call] {
    Gil gil;
    made->adopt(call(), timeout_s);
  };
  if (!is_blocking) return make_in_background(comm, made, connect);
  make_ranks([=] {
    connect();
    *comm = communicators().add(made);
  });
}

hcclResult_t collective(const char* name, Asked asked, hcclComm_t comm, void* stream) {
  return call(name, [&] {
    asked.communicator = communicators().find(comm);
    submit(checked(std::move(asked)), stream);
  });
}

}  // namespace

hcclResult_t report(Error error) {
  last_text = std::move(error.text);
  // Programs often print hcclGetErrorString() alone.
  const char* debug = getenv("HCCL_DEBUG");
  if (debug != nullptr && *debug != '\0' && *debug != '0') {
    std::fprintf(stderr, "libhccl: %s\n", last_text.c_str());
  }
  return error.code;
}

}  // namespace hccl

using namespace hccl;

extern "C" {

hcclResult_t hcclGetVersion(int* version) {
  return call("hcclGetVersion", [&] {
    require(version, "version");
    *version = HCCL_VERSION_CODE;
  });
}

const char* hcclGetErrorString(hcclResult_t result) {
  static const char* const texts[] = {
      "success",
      "no device was found",
      "the call is not supported",
      "not enough memory",
      "unhandled error of the device runtime",
      "the ranks could not connect, a deadline passed, or a system call failed",
      "internal error",
      "invalid argument",
      "invalid usage, or ranks made different calls",
      "a rank died, left or is out of reach",
      "error of libfabric",
      "try again",
      "busy",
      "unknown result",
      "the communicator was aborted",
      "the device runtime was terminated",
      "a port is down"};
  if (result == hcclUninitialized) return "uninitialized";
  return result >= 0 && result <= hcclPortDown ? texts[result] : texts[hcclNumResults];
}

const char* hcclGetLastErrorMessage() { return last_text.empty() ? nullptr : last_text.c_str(); }

hcclResult_t hcclCommGetAsyncError(hcclComm_t comm, hcclResult_t* asyncError) {
  return call("hcclCommGetAsyncError", [&] {
    require(asyncError, "asyncError");
    CommunicatorPtr found = communicators().find(comm);
    // Perhaps no thread waits for the call that failed; a stream that is asked notes it.
    for (const StreamPtr& stream : streams().all()) stream->is_idle();
    bool is_made = found->state() != Communicator::State::being_made;
    *asyncError = is_made ? found->failure().code : hcclBusy;
  });
}

const char* hcclCommGetAsyncErrorMessage(hcclComm_t comm) {
  hcclResult_t result = call("hcclCommGetAsyncErrorMessage", [&] {
    async_text = comm == nullptr ? last_failure().text : communicators().find(comm)->failure().text;
  });
  return result == hcclSuccess && !async_text.empty() ? async_text.c_str() : nullptr;
}

hcclResult_t hcclGetUniqueId(hcclUniqueId* uniqueId) {
  return call("hcclGetUniqueId", [&] {
    require(uniqueId, "uniqueId");
    require_python();
    std::memset(uniqueId, 0, sizeof(*uniqueId));
    Gil gil;
    Object length = call_python("unique_id", "(K)", (unsigned long long)uniqueId->internal);
    uniqueId->length = size_t(api.PyLong_AsLongLong(length.get()));
  });
}

hcclResult_t hcclCommInitRankConfig(hcclComm_t* comm, int nranks, hcclUniqueId commId, int rank,
                                    hcclConfig_t* config) {
  return call("hcclCommInitRankConfig", [&] {
    require(comm, "comm");
    make(comm, nranks, commId, rank, read(config));
  });
}

hcclResult_t hcclCommInitRank(hcclComm_t* comm, int nranks, hcclUniqueId commId, int rank) {
  return call("hcclCommInitRank", [&] {
    require(comm, "comm");
    make(comm, nranks, commId, rank, {});
  });
}

hcclResult_t hcclCommInitAll(hcclComm_t* comm, int ndev, const int*) {
  return call("hcclCommInitAll", [&] {
    require(comm, "comm");
    check_rank(ndev, 0);
    require_no_group();
    hcclUniqueId id;
    if (hcclGetUniqueId(&id) != hcclSuccess) throw Error{hcclSystemError, last_text};
    hcclGroupStart();
    for (int rank = 0; rank < ndev; ++rank) make(&comm[rank], ndev, id, rank, {});
    if (hcclResult_t result = hcclGroupEnd(); result != hcclSuccess) throw Error{result, last_text};
  });
}

hcclResult_t hcclCommFinalize(hcclComm_t comm) {
  return call("hcclCommFinalize", [&] {
    require_no_group();
    CommunicatorPtr found = idle(comm);
    found->require_open();
    found->finalize();
  });
}

hcclResult_t hcclCommDestroy(hcclComm_t comm) {
  return call("hcclCommDestroy", [&] {
    require_no_group();
    idle(comm);
    communicators().take(comm)->close();
  });
}

hcclResult_t hcclCommAbort(hcclComm_t comm) {
  return call("hcclCommAbort", [&] {
    CommunicatorPtr found = communicators().take(comm);
    found->abort();
    finish_streams(*found);
    found->close();
  });
}

hcclResult_t hcclCommCount(hcclComm_t comm, int* count) {
  return call("hcclCommCount", [&] {
    require(count, "count");
    CommunicatorPtr found = communicators().find(comm);
    found->require_made();
    *count = found->size;
  });
}

hcclResult_t hcclCommUserRank(hcclComm_t comm, int* rank) {
  return call("hcclCommUserRank", [&] {
    require(rank, "rank");
    CommunicatorPtr found = communicators().find(comm);
    found->require_made();
    *rank = found->rank;
  });
}

hcclResult_t hcclCommSynDevice(hcclComm_t comm, int* device) {
  return call("hcclCommSynDevice", [&] {
    require(device, "device");
    communicators().find(comm);
    *device = 0;
  });
}

hcclResult_t hcclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           hcclDataType_t datatype, hcclRedOp_t reduceOp, hcclComm_t comm,
                           void* stream) {
  return collective("hcclAllReduce",
                    {Kind::all_reduce, sendbuff, recvbuff, count, datatype, reduceOp}, comm,
                    stream);
}

hcclResult_t hcclReduce(const void* sendbuff, void* recvbuff, size_t count, hcclDataType_t datatype,
                        hcclRedOp_t reduceOp, int root, hcclComm_t comm, void* stream) {
  return collective("hcclReduce",
                    {Kind::reduce, sendbuff, recvbuff, count, datatype, reduceOp, root}, comm,
                    stream);
}

hcclResult_t hcclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               hcclDataType_t datatype, hcclRedOp_t reduceOp, hcclComm_t comm,
                               void* stream) {
  return collective("hcclReduceScatter",
                    {Kind::reduce_scatter, sendbuff, recvbuff, recvcount, datatype, reduceOp}, comm,
                    stream);
}

hcclResult_t hcclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           hcclDataType_t datatype, hcclComm_t comm, void* stream) {
  return collective("hcclAllGather", {Kind::all_gather, sendbuff, recvbuff, sendcount, datatype},
                    comm, stream);
}

hcclResult_t hcclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           hcclDataType_t datatype, int root, hcclComm_t comm, void* stream) {
  return collective("hcclBroadcast",
                    {Kind::broadcast, sendbuff, recvbuff, count, datatype, hcclSum, root}, comm,
                    stream);
}

hcclResult_t hcclBcast(void* buff, size_t count, hcclDataType_t datatype, int root, hcclComm_t comm,
                       void* stream) {
  return collective("hcclBcast", {Kind::broadcast, buff, buff, count, datatype, hcclSum, root},
                    comm, stream);
}

hcclResult_t hcclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                          hcclDataType_t datatype, hcclComm_t comm, void* stream) {
  return collective("hcclAlltoAll", {Kind::all_to_all, sendbuff, recvbuff, count, datatype}, comm,
                    stream);
}

hcclResult_t hcclBarrier(hcclComm_t comm, void* stream) {
  return collective("hcclBarrier", {Kind::barrier, nullptr, nullptr, 1}, comm, stream);
}

hcclResult_t hcclSend(const void* sendbuff, size_t count, hcclDataType_t datatype, int peer,
                      hcclComm_t comm, void* stream) {
  return collective("hcclSend", {Kind::send, sendbuff, nullptr, count, datatype, hcclSum, peer},
                    comm, stream);
}

hcclResult_t hcclRecv(void* recvbuff, size_t count, hcclDataType_t datatype, int peer,
                      hcclComm_t comm, void* stream) {
  return collective("hcclRecv", {Kind::recv, nullptr, recvbuff, count, datatype, hcclSum, peer},
                    comm, stream);
}

hcclResult_t hcclCommSplit(hcclComm_t comm, int color, int key, hcclComm_t* newcomm,
                           hcclConfig_t* config) {
  return call("hcclCommSplit", [&] {
    require(newcomm, "newcomm");
    if (color < HCCL_SPLIT_NOCOLOR) {
      reject("color: expected 0 or more, or HCCL_SPLIT_NOCOLOR, got " + std::to_string(color));
    }
    Config wanted = read(config);
    CommunicatorPtr from = idle(comm);
    from->require_open();
    double timeout_s = config != nullptr ? wanted.timeout_s : from->timeout_s;
    *newcomm = nullptr;
    auto split = [from, color, key, timeout_s] {
      return call_python("split", "(Oiid)", from->python.load(), color, key, timeout_s);
    };
    if (color != HCCL_SPLIT_NOCOLOR) {
      return make_from(newcomm, wanted.is_blocking, timeout_s, split);
    }
    make_ranks([split] {
      Gil gil;
      split();
    });
  });
}

hcclResult_t hcclCommShrink(hcclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            hcclComm_t* newcomm, hcclConfig_t* config, int shrinkFlags) {
  return call("hcclCommShrink", [&] {
    require(newcomm, "newcomm");
    if (excludeRanksCount < 0 || (excludeRanksCount > 0 && excludeRanksList == nullptr)) {
      reject("excludeRanksList: expected excludeRanksCount ranks, got NULL or a negative count");
    }
    if (shrinkFlags != HCCL_SHRINK_DEFAULT && shrinkFlags != HCCL_SHRINK_ABORT) {
      reject("shrinkFlags: expected HCCL_SHRINK_DEFAULT or HCCL_SHRINK_ABORT, got " +
             std::to_string(shrinkFlags));
    }
    Config wanted = read(config);
    CommunicatorPtr from = communicators().find(comm);
    from->require_made();
    if (shrinkFlags == HCCL_SHRINK_ABORT) from->abort();
    finish_streams(*from);
    double timeout_s = config != nullptr ? wanted.timeout_s : from->timeout_s;
    constexpr double usual_s = 10;  // how long to wait for ranks that are not known to be dead
    std::string excluded;
    for (int i = 0; i < excludeRanksCount; ++i) {
      excluded += std::to_string(excludeRanksList[i]) + ' ';
    }
    *newcomm = nullptr;
    double limit_s = config != nullptr ? timeout_s : usual_s;
    make_from(newcomm, wanted.is_blocking, timeout_s, [from, excluded, limit_s] {
      return call_python("shrink", "(Osd)", from->python.load(), excluded.c_str(), limit_s);
    });
  });
}

hcclResult_t hcclRedOpCreatePreMulSum(hcclRedOp_t* op, void* scalar, hcclDataType_t datatype,
                                      hcclScalarResidence_t residence, hcclComm_t comm) {
  return call("hcclRedOpCreatePreMulSum", [&] {
    require(op, "op");
    if (scalar == nullptr) reject("scalar: expected its address, got NULL");
    require_floats(datatype);
    bool is_on_device = residence == hcclScalarDevice;
    if (!is_on_device && residence != hcclScalarHostImmediate) {
      reject("residence: expected one of hcclScalarResidence_t, got " + std::to_string(residence));
    }
    CommunicatorPtr found = communicators().find(comm);
    std::lock_guard guard(found->mutex);
    int number = found->factors.empty() ? first_factor : found->factors.rbegin()->first + 1;
    found->factors[number] = is_on_device
                                 ? Factor{datatype, scalar, 0}
                                 : Factor{datatype, nullptr, read_factor(scalar, datatype)};
    *op = static_cast<hcclRedOp_t>(number);
  });
}

hcclResult_t hcclRedOpDestroy(hcclRedOp_t op, hcclComm_t comm) {
  return call("hcclRedOpDestroy", [&] {
    CommunicatorPtr found = communicators().find(comm);
    std::lock_guard guard(found->mutex);
    if (found->factors.erase(op) == 0) {
      reject("op: expected one of hcclRedOpCreatePreMulSum, got " + std::to_string(op));
    }
  });
}

}  // extern "C"
