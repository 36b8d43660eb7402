// The declarations of rdma/ibverbs.h against libibverbs' own, where its header is installed; the
// codes of InfiniBand; and a machine without the library.
#include <cstddef>
#include <string>

#include "check.h"
#include "verbs/rdma/codes.h"
#include "verbs/rdma/library.h"

#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>

#define SAME_FIELD(ours, theirs, field) \
  static_assert(offsetof(hccl::ibv::ours, field) == offsetof(theirs, field))
#define SAME_SIZE(ours, theirs) static_assert(sizeof(hccl::ibv::ours) == sizeof(theirs))

SAME_FIELD(Context, ibv_context, async_fd);
static_assert(offsetof(hccl::ibv::Context, ops.poll_cq) == offsetof(ibv_context, ops.poll_cq));
static_assert(offsetof(hccl::ibv::Context, ops.req_notify_cq) ==
              offsetof(ibv_context, ops.req_notify_cq));
static_assert(offsetof(hccl::ibv::Context, ops.post_send) == offsetof(ibv_context, ops.post_send));
static_assert(offsetof(hccl::ibv::Context, ops.post_recv) == offsetof(ibv_context, ops.post_recv));
SAME_FIELD(Mr, ibv_mr, lkey);
SAME_FIELD(Mr, ibv_mr, rkey);
SAME_FIELD(CompChannel, ibv_comp_channel, fd);
SAME_FIELD(Cq, ibv_cq, context);
SAME_FIELD(Qp, ibv_qp, context);
SAME_FIELD(Qp, ibv_qp, qp_num);
SAME_SIZE(Sge, ibv_sge);
SAME_FIELD(SendWr, ibv_send_wr, opcode);
SAME_FIELD(SendWr, ibv_send_wr, send_flags);
SAME_FIELD(SendWr, ibv_send_wr, imm_data);
static_assert(offsetof(hccl::ibv::SendWr, rdma.remote_addr) ==
              offsetof(ibv_send_wr, wr.rdma.remote_addr));
static_assert(offsetof(hccl::ibv::SendWr, rdma.rkey) == offsetof(ibv_send_wr, wr.rdma.rkey));
static_assert(sizeof(hccl::ibv::SendWr) >= sizeof(ibv_send_wr));
SAME_SIZE(RecvWr, ibv_recv_wr);
SAME_FIELD(RecvWr, ibv_recv_wr, num_sge);
SAME_SIZE(Wc, ibv_wc);
SAME_FIELD(Wc, ibv_wc, byte_len);
SAME_FIELD(Wc, ibv_wc, imm_data);
SAME_FIELD(Wc, ibv_wc, wc_flags);
SAME_SIZE(QpInitAttr, ibv_qp_init_attr);
SAME_FIELD(QpInitAttr, ibv_qp_init_attr, cap);
SAME_FIELD(QpInitAttr, ibv_qp_init_attr, qp_type);
SAME_SIZE(AhAttr, ibv_ah_attr);
SAME_FIELD(AhAttr, ibv_ah_attr, is_global);
SAME_FIELD(AhAttr, ibv_ah_attr, port_num);
SAME_SIZE(QpAttr, ibv_qp_attr);
SAME_FIELD(QpAttr, ibv_qp_attr, qp_access_flags);
SAME_FIELD(QpAttr, ibv_qp_attr, ah_attr);
SAME_FIELD(QpAttr, ibv_qp_attr, max_rd_atomic);
SAME_FIELD(QpAttr, ibv_qp_attr, min_rnr_timer);
SAME_FIELD(QpAttr, ibv_qp_attr, rnr_retry);
SAME_SIZE(DeviceAttr, ibv_device_attr);
SAME_FIELD(DeviceAttr, ibv_device_attr, max_qp_wr);
SAME_FIELD(DeviceAttr, ibv_device_attr, max_sge);
SAME_FIELD(DeviceAttr, ibv_device_attr, max_cqe);
SAME_FIELD(DeviceAttr, ibv_device_attr, max_qp_rd_atom);
SAME_FIELD(DeviceAttr, ibv_device_attr, max_qp_init_rd_atom);
SAME_FIELD(DeviceAttr, ibv_device_attr, max_pkeys);
SAME_FIELD(PortAttr, ibv_port_attr, active_mtu);
static_assert(offsetof(hccl::ibv::PortAttr, other) == offsetof(ibv_port_attr, lmc));
SAME_SIZE(AsyncEvent, ibv_async_event);
SAME_FIELD(AsyncEvent, ibv_async_event, element.port_num);
SAME_FIELD(AsyncEvent, ibv_async_event, event_type);

#define SAME_NUMBER(ours, theirs) \
  static_assert(static_cast<unsigned>(hccl::ibv::ours) == static_cast<unsigned>(theirs))
SAME_NUMBER(wc_loc_qp_op_err, IBV_WC_LOC_QP_OP_ERR);
SAME_NUMBER(wc_loc_prot_err, IBV_WC_LOC_PROT_ERR);
SAME_NUMBER(wc_wr_flush_err, IBV_WC_WR_FLUSH_ERR);
SAME_NUMBER(wc_rem_inv_req_err, IBV_WC_REM_INV_REQ_ERR);
SAME_NUMBER(wc_rem_access_err, IBV_WC_REM_ACCESS_ERR);
SAME_NUMBER(wc_rem_op_err, IBV_WC_REM_OP_ERR);
SAME_NUMBER(wc_retry_exc_err, IBV_WC_RETRY_EXC_ERR);
SAME_NUMBER(wc_rnr_retry_exc_err, IBV_WC_RNR_RETRY_EXC_ERR);
SAME_NUMBER(wc_recv, IBV_WC_RECV);
SAME_NUMBER(wc_recv_rdma_with_imm, IBV_WC_RECV_RDMA_WITH_IMM);
SAME_NUMBER(wc_with_imm, IBV_WC_WITH_IMM);
SAME_NUMBER(wr_rdma_write_with_imm, IBV_WR_RDMA_WRITE_WITH_IMM);
SAME_NUMBER(wr_send, IBV_WR_SEND);
SAME_NUMBER(wr_rdma_read, IBV_WR_RDMA_READ);
SAME_NUMBER(flag_fence, IBV_SEND_FENCE);
SAME_NUMBER(flag_signaled, IBV_SEND_SIGNALED);
SAME_NUMBER(flag_inline, IBV_SEND_INLINE);
SAME_NUMBER(qps_rts, IBV_QPS_RTS);
SAME_NUMBER(qps_err, IBV_QPS_ERR);
SAME_NUMBER(qpt_rc, IBV_QPT_RC);
SAME_NUMBER(qp_av, IBV_QP_AV);
SAME_NUMBER(qp_max_qp_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC);
SAME_NUMBER(qp_max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC);
SAME_NUMBER(qp_dest_qpn, IBV_QP_DEST_QPN);
SAME_NUMBER(event_device_fatal, IBV_EVENT_DEVICE_FATAL);
SAME_NUMBER(event_port_active, IBV_EVENT_PORT_ACTIVE);
SAME_NUMBER(event_port_err, IBV_EVENT_PORT_ERR);
// Ours cross unchanged.
static_assert(hccl::access_local_write == IBV_ACCESS_LOCAL_WRITE);
static_assert(hccl::access_remote_write == IBV_ACCESS_REMOTE_WRITE);
static_assert(hccl::access_remote_read == IBV_ACCESS_REMOTE_READ);
static_assert(hccl::send_fence == IBV_SEND_FENCE && hccl::send_signaled == IBV_SEND_SIGNALED &&
              hccl::send_inline == IBV_SEND_INLINE);
#endif

namespace hccl::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

HCCL_TEST(a_code_is_the_least_whose_time_is_not_shorter) {
  CHECK(timeout_code(microseconds(1)) == 1);
  CHECK(timeout_code(milliseconds(67)) == 14);   // 67.1 ms
  CHECK(timeout_code(milliseconds(500)) == 17);  // 537 ms
  CHECK(timeout_code(std::chrono::hours(10)) == 31);
  CHECK(rnr_timer_code(microseconds(0)) == 1);
  CHECK(rnr_timer_code(microseconds(100)) == 7);   // 120 us
  CHECK(rnr_timer_code(milliseconds(491)) == 31);  // 491.52 ms
  CHECK(rnr_timer_code(milliseconds(600)) == 0);   // 655.36 ms
  CHECK(mtu_code(256) == 1);
  CHECK(mtu_code(4096) == 5);
  std::string said;
  try {
    mtu_code(1500);
  } catch (const InvalidVerb& error) {
    said = error.what();
  }
  CHECK(said.find("not 1500") != std::string::npos);
}

HCCL_TEST(a_library_that_is_missing_is_named_with_its_package) {
  std::string said;
  try {
    IbVerbs::load("libibverbs-that-is-missing.so.1");
  } catch (const RdmaError& error) {
    said = error.what();
  }
  CHECK(said.find("libibverbs-that-is-missing.so.1") != std::string::npos);
  CHECK(said.find("apt install ibverbs-providers") != std::string::npos);
}

}  // namespace
}  // namespace hccl::test
