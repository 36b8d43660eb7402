/* The stand-in for the device runtime: a call of HCCL between two copies, and every refusal. */
#include <hccl/synapse_api.h>

#include "check.h"

#define SYN(expected, call)                                       \
  do {                                                            \
    synStatus status_ = (call);                                   \
    EXPECT(status_ == (expected), "%s: %d", #call, (int)status_); \
  } while (0)

static void check_device(synDeviceId* device) {
  uint32_t count = 0;
  uint64_t available = 0, total = 0;
  char text[128];
  synDeviceInfoV2 info;
  SYN(synUninitialized, synDeviceAcquire(device, NULL));
  SYN(synSuccess, synInitialize());
  SYN(synAlreadyInitialized, synInitialize());
  SYN(synSuccess, synDeviceGetCount(&count));
  EXPECT(count == 1, "%u", count);
  SYN(synSuccess, synDeviceGetCountByDeviceType(&count, synDeviceGaudi2));
  EXPECT(count == 0, "%u", count);
  SYN(synInvalidArgument, synDeviceAcquireByModuleId(device, INVALID_MODULE_ID));
  SYN(synNoDeviceFound, synDeviceAcquireByDeviceType(device, synDeviceGaudi3));
  SYN(synSuccess, synDeviceAcquireByModuleId(device, (synModuleId)rank));
  SYN(synDeviceAlreadyAcquired, synDeviceAcquire(device, NULL));
  SYN(synSuccess, synDeviceGetMemoryInfo(*device, &available, &total));
  EXPECT(available > 0 && available <= total, "%llu", (unsigned long long)available);
  SYN(synSuccess, synDeviceGetInfoV2(*device, &info));
  EXPECT(info.deviceType == synDeviceEmulator && info.dramSize == total, "%d", info.deviceType);
  SYN(synSuccess, synDeviceGetName(text, sizeof(text), *device));
  EXPECT(strstr(text, "stand-in"), "%s", text);
  SYN(synInvalidArgument, synDeviceGetName(text, 3, *device));
  SYN(synInvalidArgument, synDeviceGetName(text, sizeof(text), 7));
  SYN(synSuccess, synDriverGetVersion(text, sizeof(text)));
  SYN(synSuccess, synConfigurationSet("SET_BY_THE_TEST", "1"));
  SYN(synSuccess, synConfigurationGet("SET_BY_THE_TEST", text, sizeof(text)));
  EXPECT(!strcmp(text, "1"), "%s", text);
}

static void check_refusals(void) {
  synGraphHandle graph = NULL;
  synRecipeHandle recipe = NULL;
  SYN(synUnsupported, synGraphCreate(&graph, synDeviceEmulator));
  SYN(synUnsupported, synGraphCompile(&recipe, graph, "name", NULL));
  SYN(synUnsupported, synRecipeDeSerialize(&recipe, "file"));
  SYN(synUnsupported, synLaunch(NULL, NULL, 0, 0, recipe, 0));
}

/* Copy to the device, all_reduce there, copy back: one stream keeps the order. */
static void check_stream(synDeviceId device, hcclComm_t comm) {
  enum { count = 1000, rounds = 20 };
  static float before[count], after[count];
  uint64_t in = 0, out = 0, elapsed = 0, bytes = sizeof(before);
  synStreamHandle stream;
  synEventHandle begin, end;
  SYN(synSuccess, synStreamCreateGeneric(&stream, device, 0));
  SYN(synSuccess, synEventCreate(&begin, device, EVENT_COLLECT_TIME));
  SYN(synSuccess, synEventCreate(&end, device, EVENT_COLLECT_TIME));
  SYN(synSuccess, synDeviceMalloc(device, bytes, 0, 0, &in));
  SYN(synSuccess, synDeviceMalloc(device, bytes, 0, 0, &out));
  SYN(synSuccess, synHostMap(device, bytes, before));
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < count; ++i) before[i] = (float)(rank + round + i);
    SYN(synSuccess, synEventRecord(begin, stream));
    SYN(synSuccess, synMemCopyAsync(stream, (uint64_t)before, bytes, in, HOST_TO_DRAM));
    OK(hcclAllReduce((void*)in, (void*)out, count, hcclFloat, hcclSum, comm, stream));
    SYN(synSuccess, synMemCopyAsync(stream, out, bytes, (uint64_t)after, DRAM_TO_HOST));
    SYN(synSuccess, synEventRecord(end, stream));
    SYN(synSuccess, synEventSynchronize(end));
    SYN(synSuccess, synEventQuery(end));
    SYN(synSuccess, synEventElapsedTime(&elapsed, begin, end));
    EXPECT(elapsed > 0, "no time passed");
    for (int i = 0; i < count; ++i) {
      float expected =
          (float)(world_size * (round + i)) + (float)(world_size * (world_size - 1)) / 2;
      EXPECT(after[i] == expected, "element %d is %g, not %g", i, after[i], expected);
    }
  }
  SYN(synSuccess, synMemsetD32Async(out, 7, count, stream));
  SYN(synSuccess, synMemsetD8Async(in, 1, bytes, stream));
  SYN(synSuccess, synMemsetD16Async(in, 258, 2, stream));
  SYN(synSuccess, synDeviceSynchronize(device));
  EXPECT(((uint32_t*)out)[count - 1] == 7 && ((uint8_t*)in)[bytes - 1] == 1, "memset");
  EXPECT(((uint16_t*)in)[1] == 258 && ((uint8_t*)in)[4] == 1, "memset of 16 bits");
  SYN(synSuccess, synHostUnmap(device, before));
  SYN(synMappingNotFound, synHostUnmap(device, before));
  SYN(synInvalidArgument, synMemCopyAsync(stream, 0, 8, out, HOST_TO_DRAM));
  SYN(synInvalidArgument, synMemCopyAsync(stream, in, 8, out, DIRECTION_ENUM_MAX));
  SYN(synSuccess, synDeviceFree(device, in, 0));
  SYN(synInvalidArgument, synDeviceFree(device, in, 0));
  SYN(synSuccess, synDeviceFree(device, out, 0));
  SYN(synSuccess, synEventDestroy(begin));
  SYN(synSuccess, synEventDestroy(end));
  SYN(synSuccess, synStreamQuery(stream));
  SYN(synSuccess, synStreamDestroy(stream));
  SYN(synInvalidArgument, synStreamSynchronize(stream));
}

int main(void) {
  synDeviceId device = SYN_INVALID_DEVICE_ID;
  begin();
  check_device(&device);
  check_refusals();
  hcclComm_t comm = connected(0);
  check_stream(device, comm);
  OK(hcclCommDestroy(comm));
  SYN(synSuccess, synDeviceRelease(device));
  SYN(synInvalidArgument, synDeviceRelease(device));
  SYN(synSuccess, synDestroy());
  printf("rank %d: every copy is right\n", rank);
  return 0;
}
