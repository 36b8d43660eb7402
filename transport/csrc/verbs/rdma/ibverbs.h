// The used part of libibverbs' binary interface.
//
// Declared here, so that the build does not need rdma-core: the library is opened at run time. The
// interface has been stable since libibverbs 1.1 (2006): structures only grow at their end, and the
// library never reads beyond its caller's structures. tests/transport/csrc/verbs/test_ibverbs.cc
// compares every field with <infiniband/verbs.h> where that is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hccl::ibv {

struct Device;       // ibv_device, which the library makes and frees
struct CompChannel;  // ibv_comp_channel
struct Mr;
struct Pd;
struct Cq;
struct Qp;
struct SendWr;
struct RecvWr;
struct Wc;

// ibv_context_ops: the calls that have no symbol, because the device's driver has them.
struct ContextOps {
  void* other_0[11];
  int (*poll_cq)(Cq*, int num_entries, Wc*);
  int (*req_notify_cq)(Cq*, int solicited_only);
  void* other_13[12];
  int (*post_send)(Qp*, SendWr*, SendWr** bad);
  int (*post_recv)(Qp*, RecvWr*, RecvWr** bad);
  void* other_27[5];
};

struct Context {
  Device* device;
  ContextOps ops;
  int cmd_fd;
  int async_fd;
};

struct Pd {
  Context* context;
  uint32_t handle;
};

struct Mr {
  Context* context;
  Pd* pd;
  void* addr;
  size_t length;
  uint32_t handle;
  uint32_t lkey;
  uint32_t rkey;
};

struct CompChannel {
  Context* context;
  int fd;
};

struct Cq {
  Context* context;
};

struct Qp {
  Context* context;
  void* qp_context;
  Pd* pd;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  uint32_t handle;
  uint32_t qp_num;
};

struct Sge {
  uint64_t addr;
  uint32_t length;
  uint32_t lkey;
};

struct SendWr {
  uint64_t wr_id;
  SendWr* next;
  Sge* sg_list;
  int num_sge;
  int opcode;
  unsigned send_flags;
  uint32_t imm_data;  // in network byte order
  struct {
    uint64_t remote_addr;
    uint32_t rkey;
  } rdma;
  uint64_t other[9];
};

struct RecvWr {
  uint64_t wr_id;
  RecvWr* next;
  Sge* sg_list;
  int num_sge;
};

struct Wc {
  uint64_t wr_id;
  int status;
  int opcode;
  uint32_t vendor_err;
  uint32_t byte_len;
  uint32_t imm_data;  // in network byte order
  uint32_t qp_num;
  uint32_t src_qp;
  unsigned wc_flags;
  uint16_t pkey_index;
  uint16_t slid;
  uint8_t sl;
  uint8_t dlid_path_bits;
};

struct QpCap {
  uint32_t max_send_wr;
  uint32_t max_recv_wr;
  uint32_t max_send_sge;
  uint32_t max_recv_sge;
  uint32_t max_inline_data;
};

struct QpInitAttr {
  void* qp_context;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  QpCap cap;
  int qp_type;
  int sq_sig_all;
};

struct AhAttr {
  struct alignas(8) {
    uint8_t dgid[16];
    uint32_t flow_label;
    uint8_t sgid_index;
    uint8_t hop_limit;
    uint8_t traffic_class;
  } grh;
  uint16_t dlid;
  uint8_t sl;
  uint8_t src_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port_num;
};

struct QpAttr {
  int qp_state;
  int cur_qp_state;
  int path_mtu;
  int path_mig_state;
  uint32_t qkey;
  uint32_t rq_psn;
  uint32_t sq_psn;
  uint32_t dest_qp_num;
  unsigned qp_access_flags;
  QpCap cap;
  AhAttr ah_attr;
  AhAttr alt_ah_attr;
  uint16_t pkey_index;
  uint16_t alt_pkey_index;
  uint8_t en_sqd_async_notify;
  uint8_t sq_draining;
  uint8_t max_rd_atomic;
  uint8_t max_dest_rd_atomic;
  uint8_t min_rnr_timer;
  uint8_t port_num;
  uint8_t timeout;
  uint8_t retry_cnt;
  uint8_t rnr_retry;
  uint8_t alt_port_num;
  uint8_t alt_timeout;
  uint32_t rate_limit;
};

struct DeviceAttr {
  char fw_ver[64];
  uint64_t node_guid;
  uint64_t sys_image_guid;
  uint64_t max_mr_size;
  uint64_t page_size_cap;
  uint32_t vendor_id;
  uint32_t vendor_part_id;
  uint32_t hw_ver;
  int max_qp;
  int max_qp_wr;
  unsigned device_cap_flags;
  int max_sge;
  int max_sge_rd;
  int max_cq;
  int max_cqe;
  int max_mr;
  int max_pd;
  int max_qp_rd_atom;
  int max_ee_rd_atom;
  int max_res_rd_atom;
  int max_qp_init_rd_atom;
  int other[16];
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay;
  uint8_t phys_port_cnt;
};

inline constexpr int port_active = 4;  // ibv_port_state

// Filled by the symbol ibv_query_port; the header's ibv_port_attr is longer.
struct PortAttr {
  int state;
  int max_mtu;
  int active_mtu;
  int gid_tbl_len;
  uint32_t port_cap_flags;
  uint32_t max_msg_sz;
  uint32_t bad_pkey_cntr;
  uint32_t qkey_viol_cntr;
  uint16_t pkey_tbl_len;
  uint16_t lid;
  uint16_t sm_lid;
  uint8_t other[10];
};

struct AsyncEvent {
  union {
    Cq* cq;
    Qp* qp;
    int port_num;
  } element;
  int event_type;
};

// ibv_wc_status, ibv_wc_opcode, ibv_wc_flags
inline constexpr int wc_success = 0, wc_loc_len_err = 1, wc_loc_qp_op_err = 2, wc_loc_prot_err = 4,
                     wc_wr_flush_err = 5, wc_rem_inv_req_err = 9, wc_rem_access_err = 10,
                     wc_rem_op_err = 11, wc_retry_exc_err = 12, wc_rnr_retry_exc_err = 13;
inline constexpr int wc_recv = 128, wc_recv_rdma_with_imm = 129;
inline constexpr unsigned wc_with_imm = 2;
// ibv_wr_opcode, ibv_send_flags
inline constexpr int wr_rdma_write = 0, wr_rdma_write_with_imm = 1, wr_send = 2,
                     wr_send_with_imm = 3, wr_rdma_read = 4;
inline constexpr unsigned flag_fence = 1, flag_signaled = 2, flag_inline = 8;
// ibv_qp_state, ibv_qp_type, ibv_qp_attr_mask
inline constexpr int qps_reset = 0, qps_init = 1, qps_rtr = 2, qps_rts = 3, qps_err = 6;
inline constexpr int qpt_rc = 2;
inline constexpr int qp_state = 1 << 0, qp_access_flags = 1 << 3, qp_pkey_index = 1 << 4,
                     qp_port = 1 << 5, qp_av = 1 << 7, qp_path_mtu = 1 << 8, qp_timeout = 1 << 9,
                     qp_retry_cnt = 1 << 10, qp_rnr_retry = 1 << 11, qp_rq_psn = 1 << 12,
                     qp_max_qp_rd_atomic = 1 << 13, qp_min_rnr_timer = 1 << 15, qp_sq_psn = 1 << 16,
                     qp_max_dest_rd_atomic = 1 << 17, qp_dest_qpn = 1 << 20;
// ibv_event_type
inline constexpr int event_device_fatal = 8, event_port_active = 9, event_port_err = 10;

}  // namespace hccl::ibv
