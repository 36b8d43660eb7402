// The checks of a call's arguments; every text names the argument, what it must be, and what it is.
#include <cstring>

#include "libhccl/communicator.h"

namespace hccl {

namespace {

constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
// DType of transport/csrc/base/types.h.
constexpr int dtypes[] = {4, 5, 8, 9, 10, 11, 2, 0, 1, 3};

struct Range {
  const char* name;
  uintptr_t begin, end;
  Range(const char* its_name, const void* address, size_t num_bytes)
      : name(its_name),
        begin(reinterpret_cast<uintptr_t>(address)),
        end(reinterpret_cast<uintptr_t>(address) + num_bytes) {}
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

void require_memory(const char* name, const void* address, size_t num_bytes) {
  if (address == nullptr && num_bytes > 0) {
    reject(std::string(name) + ": expected a buffer of " + std::to_string(num_bytes) +
           " bytes, got NULL");
  }
}

void require_rank(const char* name, int rank, int size) {
  if (rank < 0 || rank >= size) {
    reject(std::string(name) + ": expected a rank of 0.." + std::to_string(size - 1) + ", got " +
           std::to_string(rank));
  }
}

}  // namespace

size_t item_bytes(hcclDataType_t type) { return sizes[type]; }
int dtype_of(hcclDataType_t type) { return dtypes[type]; }

void require_type(hcclDataType_t type) {
  if (type < 0 || type >= hcclNumTypes) {
    reject("datatype: expected one of hcclDataType_t (0..9), got " + std::to_string(type));
  }
}

void require_floats(hcclDataType_t type) {
  require_type(type);
  if (type < hcclFloat16) {
    reject("datatype: expected a floating-point type for a premultiplied sum, got " +
           std::to_string(type));
  }
}

double read_factor(const void* scalar, hcclDataType_t type) {
  uint16_t half;
  float single;
  double value;
  switch (type) {
    case hcclFloat64: std::memcpy(&value, scalar, sizeof(value)); return value;
    case hcclFloat32: std::memcpy(&single, scalar, sizeof(single)); return double(single);
    default: break;
  }
  std::memcpy(&half, scalar, sizeof(half));
  uint32_t bits;
  if (type == hcclBfloat16) {
    bits = uint32_t(half) << 16;
    std::memcpy(&single, &bits, sizeof(single));
    return double(single);
  }
  int exponent = half >> 10 & 31, fraction = half & 1023;
  double sign = half >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return fraction ? __builtin_nan("") : sign * __builtin_inf();
  double scale = exponent ? double(1 << exponent) / (1 << 25) : 1.0 / (1 << 24);
  return sign * scale * (exponent ? 1024 + fraction : fraction);
}

Asked checked(Asked a) {
  Communicator& on = *a.communicator;
  on.require_open();
  require_type(a.type);
  size_t n = size_t(on.size), most = size_t(PTRDIFF_MAX) / sizes[a.type] / n;
  if (a.count > most) {
    reject("count: expected at most " + std::to_string(most) + ", got " + std::to_string(a.count));
  }
  if (a.is_transfer()) {
    require_rank("peer", a.root, on.size);
    bool sends = a.kind == Kind::send;
    require_memory(sends ? "sendbuff" : "recvbuff", sends ? a.send : a.recv, a.num_bytes());
    return a;
  }
  bool is_rooted = a.kind == Kind::broadcast || a.kind == Kind::reduce;
  if (is_rooted) require_rank("root", a.root, on.size);
  if (a.op >= first_factor) {
    std::lock_guard guard(on.mutex);
    auto found = on.factors.find(a.op);
    if (found == on.factors.end()) {
      reject("reduceOp: expected an op of this communicator, got " + std::to_string(a.op) +
             ", which hcclRedOpCreatePreMulSum did not make, or which was destroyed");
    }
    if (found->second.type != a.type) {
      reject("datatype: expected " + std::to_string(found->second.type) +
             " like the scalar of the op, got " + std::to_string(a.type));
    }
    a.factor = std::make_shared<Factor>(found->second);
    a.op = hcclSum;
  } else if (a.op < 0 || a.op >= hcclOpNone) {
    reject("reduceOp: expected one of hcclRedOp_t (0..4), got " + std::to_string(a.op));
  }
  if (a.kind == Kind::all_to_all) {
    if (a.count % n != 0) {
      reject("count: expected a multiple of " + std::to_string(n) + " ranks, got " +
             std::to_string(a.count));
    }
    a.count /= n;
  }
  bool sends_all = a.kind == Kind::reduce_scatter || a.kind == Kind::all_to_all;
  bool receives_all = a.kind == Kind::all_gather || a.kind == Kind::all_to_all;
  bool is_root = a.root == on.rank, has_buffers = a.kind != Kind::barrier;
  bool reads = has_buffers && (a.kind != Kind::broadcast || is_root);
  bool writes = has_buffers && (a.kind != Kind::reduce || is_root);
  Range in("sendbuff", a.send, a.num_bytes() * (sends_all ? n : 1));
  Range out("recvbuff", a.recv, a.num_bytes() * (receives_all ? n : 1));
  if (reads) require_memory(in.name, a.send, in.end - in.begin);
  if (writes) require_memory(out.name, a.recv, out.end - out.begin);
  if (reads && writes && in.meets(out)) {
    uintptr_t block = size_t(on.rank) * a.num_bytes();
    bool is_in_place = in.begin + (a.kind == Kind::reduce_scatter ? block : 0) ==
                       out.begin + (a.kind == Kind::all_gather ? block : 0);
    if (!is_in_place) {
      reject("recvbuff: expected memory apart from sendbuff, or in place, got " +
             std::to_string(in.begin < out.begin ? out.begin - in.begin : in.begin - out.begin) +
             " bytes between their beginnings");
    }
  }
  size_t total = a.count * (sends_all || receives_all ? n : 1);
  a.plan = on.plan(a.kind, a.type, a.op, total, is_rooted ? a.root : -1);
  return a;
}

}  // namespace hccl
