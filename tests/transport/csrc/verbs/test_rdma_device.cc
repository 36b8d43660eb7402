// What an RDMA device is told, and a device that is removed or refuses, without one.
#include <chrono>
#include <memory>
#include <string>

#include "fake_ibverbs.h"
#include "verbs/rdma/codes.h"
#include "verbs/rdma/queue_pair.h"

namespace hccl::test {
namespace {

struct Fixture {
  FakeDevice fake;
  std::shared_ptr<RdmaDevice> device;
  std::shared_ptr<RdmaDomain> domain;
  std::unique_ptr<RdmaQueuePair> pair;

  explicit Fixture(const RdmaRoute& route = {}, const QueuePairAttributes& attributes = {})
      : device(std::make_shared<RdmaDevice>("fake0", route, FakeDevice::verbs())),
        domain(std::make_shared<RdmaDomain>(device)),
        pair(std::make_unique<RdmaQueuePair>(domain, nullptr, nullptr, attributes)) {}

  void connect() {
    pair->modify(QueuePairState::init);
    pair->attach({{0xfe, 0x80}, 23, 4711, 1024, 0});
    pair->modify(QueuePairState::rtr);
    pair->modify(QueuePairState::rts);
  }
  Completion poll_one() {
    Completion completion;
    CHECK(pair->poll({&completion, 1}) == 1);
    return completion;
  }
};

template <class Error, typename Action>
std::string text_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

HCCL_TEST(settings_reach_the_device) {
  QueuePairAttributes attributes;
  attributes.timeout = std::chrono::milliseconds(67);
  attributes.retry_count = 3;
  Fixture f({.port = 2, .gid_index = 5, .traffic_class = 104, .service_level = 6}, attributes);
  f.connect();
  CHECK(f.fake.modified.size() == 3);
  CHECK(f.fake.modified[0].first.port_num == 2);
  const auto& [rtr, rtr_mask] = f.fake.modified[1];
  CHECK(rtr.ah_attr.port_num == 2 && rtr.ah_attr.is_global == 1 && (rtr_mask & ibv::qp_av));
  CHECK(rtr.ah_attr.grh.sgid_index == 5 && rtr.ah_attr.grh.dgid[0] == 0xfe);
  CHECK(rtr.ah_attr.grh.traffic_class == 104 && rtr.ah_attr.sl == 6);
  CHECK(rtr.dest_qp_num == 23 && rtr.rq_psn == 4711 && rtr.path_mtu == mtu_code(1024));
  const auto& [rts, rts_mask] = f.fake.modified[2];
  CHECK(rts.timeout == 14 && rts.retry_cnt == 3);
  CHECK((rts_mask & ibv::qp_timeout) && (rts_mask & ibv::qp_retry_cnt));
  CHECK(rts.sq_psn == f.pair->psn() && rts.sq_psn <= 0xffffff);
}

HCCL_TEST(packet_numbers_begin_at_random) {
  Fixture one, other;
  CHECK(one.pair->psn() != other.pair->psn());
}

HCCL_TEST(removed_device_ends_the_queue_pair_by_its_event) {
  Fixture f;
  f.connect();
  f.pair->post_send({.wr_id = 7});
  f.fake.has_event(ibv::event_device_fatal);
  f.device->take_events();
  CHECK(f.fake.num_acknowledged == 1 && f.device->lost());
  CHECK(f.poll_one().status == Status::device_error);
  CHECK(f.pair->reason() == "RDMA device fake0 is gone or failed");
  CHECK(f.pair->state() == QueuePairState::error);
  Completion again;
  CHECK(f.pair->poll({&again, 1}) == 0);
}

HCCL_TEST(queue_that_cannot_be_polled_any_more_ends_the_queue_pair) {
  Fixture f;
  f.connect();
  f.fake.is_gone = true;
  CHECK(f.poll_one().status == Status::device_error);
}

HCCL_TEST(completions_from_before_the_removal_are_taken) {
  Fixture f;
  f.connect();
  f.pair->post_send({.wr_id = 7});
  f.fake.completions.push_back({});
  f.fake.has_event(ibv::event_device_fatal);
  f.device->take_events();
  Completion first = f.poll_one();
  CHECK(first.status == Status::success && first.wr_id == 7);
  CHECK(f.poll_one().status == Status::device_error);
}

HCCL_TEST(port_that_goes_down_is_named_until_it_is_active_again) {
  Fixture f;
  f.connect();
  CHECK(f.pair->trouble().empty());
  f.fake.has_event(ibv::event_port_err);
  f.device->take_events();
  CHECK(f.pair->trouble() == "IBV_EVENT_PORT_ERR on fake0: its port 1 is down");
  f.fake.has_event(ibv::event_port_active);
  f.device->take_events();
  CHECK(f.pair->trouble().empty() && f.fake.num_acknowledged == 2);
}

HCCL_TEST(requests_that_the_device_refuses_are_named) {
  Fixture f;
  f.connect();
  f.fake.refusal = ENODEV;
  auto send = [&] { f.pair->post_send({}); };
  CHECK(text_of<InvalidVerb>(send).find("refused a send: No such device") != std::string::npos);
  f.fake.refusal = ENOMEM;
  CHECK(throws<QueueFull>(send));
  CHECK(throws<QueueFull>([&] { f.pair->post_recv({}); }));
  f.fake.refusal = 0;
  f.pair->post_send({.wr_id = 3});  // those that failed took no place
  f.fake.completions.push_back({});
  CHECK(f.poll_one().wr_id == 3);
}

HCCL_TEST(limits_and_locked_memory_are_the_devices) {
  Fixture f;
  QueuePairAttributes many;
  many.max_send_wr = 128;
  f.fake.limits.max_qp_wr = 64;
  auto device = std::make_shared<RdmaDevice>("fake0", RdmaRoute{}, FakeDevice::verbs());
  auto domain = std::make_shared<RdmaDomain>(device);
  std::string said = text_of<InvalidVerb>([&] { RdmaQueuePair(domain, nullptr, nullptr, many); });
  CHECK(said == "max_send_wr is 128, device fake0 has 64 at most");
  said = text_of<RdmaError>([&] { domain->register_memory(4096, 4096, access_local_write); });
  CHECK(said.find("ulimit -l unlimited") != std::string::npos);
}

}  // namespace
}  // namespace hccl::test
