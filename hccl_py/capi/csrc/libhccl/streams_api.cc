// The functions of hccl.h for streams and events.
#include "libhccl/api.h"

namespace hccl {

Handles<Stream>& streams() {
  static auto& all = *new Handles<Stream>(2, "stream");
  return all;
}

Handles<Event>& events() {
  static auto& all = *new Handles<Event>(3, "event");
  return all;
}

void finish_streams(const Communicator& of) {
  for (const StreamPtr& stream : streams().all()) stream->wait_for_calls(of);
}

}  // namespace hccl

using namespace hccl;

extern "C" {

hcclResult_t hcclStreamCreate(hcclStream_t* stream) {
  return guarded("hcclStreamCreate", [&] {
    if (stream == nullptr) reject("stream: expected an address for the result, got NULL");
    *stream = streams().add(std::make_shared<Stream>());
  });
}

hcclResult_t hcclStreamDestroy(hcclStream_t stream) {
  return guarded("hcclStreamDestroy", [&] { streams().take(stream)->stop(); });
}

hcclResult_t hcclStreamSynchronize(hcclStream_t stream) {
  return guarded("hcclStreamSynchronize", [&] {
    if (stream != nullptr) streams().find(stream)->synchronize();
  });
}

hcclResult_t hcclStreamQuery(hcclStream_t stream) {
  hcclResult_t result = hcclSuccess;
  hcclResult_t failed = guarded("hcclStreamQuery", [&] {
    if (stream == nullptr) return;
    StreamPtr found = streams().find(stream);
    found->is_idle() ? found->synchronize() : void(result = hcclBusy);
  });
  return failed != hcclSuccess ? failed : result;
}

hcclResult_t hcclStreamHostFunction(hcclStream_t stream, void (*function)(void*), void* argument) {
  return guarded("hcclStreamHostFunction", [&] {
    if (function == nullptr) reject("function: expected one, got NULL");
    if (stream == nullptr) return function(argument);
    streams().find(stream)->push([function, argument] { function(argument); });
  });
}

hcclResult_t hcclEventCreate(hcclEvent_t* event) {
  return guarded("hcclEventCreate", [&] {
    if (event == nullptr) reject("event: expected an address for the result, got NULL");
    *event = events().add(std::make_shared<Event>());
  });
}

hcclResult_t hcclEventDestroy(hcclEvent_t event) {
  return guarded("hcclEventDestroy", [&] { events().take(event); });
}

hcclResult_t hcclEventRecord(hcclEvent_t event, hcclStream_t stream) {
  return guarded("hcclEventRecord", [&] {
    auto found = events().find(event);
    stream == nullptr ? found->record_now() : found->record(streams().find(stream));
  });
}

hcclResult_t hcclEventSynchronize(hcclEvent_t event) {
  return guarded("hcclEventSynchronize", [&] { events().find(event)->wait(); });
}

hcclResult_t hcclEventQuery(hcclEvent_t event) {
  bool has_ended = true;
  hcclResult_t failed =
      guarded("hcclEventQuery", [&] { has_ended = events().find(event)->has_ended(); });
  if (failed != hcclSuccess) return failed;
  return has_ended ? hcclSuccess : hcclBusy;
}

hcclResult_t hcclStreamWaitEvent(hcclStream_t stream, hcclEvent_t event) {
  return guarded("hcclStreamWaitEvent", [&] {
    auto [other, number] = events().find(event)->position();
    if (other == nullptr) return;
    if (stream == nullptr) return other->wait_for(number);
    StreamPtr waiting = streams().find(stream);
    if (waiting != other) waiting->push([o = other, n = number] { o->wait_for(n); });
  });
}

hcclResult_t hcclEventElapsedTime(uint64_t* nanoseconds, hcclEvent_t start, hcclEvent_t end) {
  return guarded("hcclEventElapsedTime", [&] {
    if (nanoseconds == nullptr) reject("nanoseconds: expected an address for the result, got NULL");
    *nanoseconds = Event::nanoseconds(*events().find(start), *events().find(end));
  });
}

}  // extern "C"
