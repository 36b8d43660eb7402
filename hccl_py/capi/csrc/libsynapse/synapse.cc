// libSynapse: Gaudi's device runtime on the host, as far as HCCL programs use it. Its streams and
// events are those of libhccl, so a call of HCCL can be queued between two copies.
#pragma GCC visibility push(default)
#include <hccl/hccl.h>
#include <hccl/synapse_api.h>
#pragma GCC visibility pop

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace {

constexpr synDeviceId the_device = 0;
constexpr const char* device_name = "host (hccl-py's stand-in for a Gaudi, without compute)";
constexpr const char* driver_version = "0.0.0.0";

struct Process {
  std::mutex mutex;
  bool is_initialized = false, is_acquired = false;
  std::set<synStreamHandle> streams;
  std::multiset<const void*> mapped;
};

Process& process() {
  static Process& the_process = *new Process;  // threads may run until the process has ended
  return the_process;
}

using Guard = std::lock_guard<std::mutex>;

bool is_device(synDeviceId device) {
  Guard guard(process().mutex);
  return device == the_device && process().is_acquired;
}

synStatus status_of(hcclResult_t result) {
  switch (result) {
    case hcclSuccess: return synSuccess;
    case hcclBusy: return synBusy;
    case hcclInvalidArgument: return synInvalidArgument;
    case hcclOutOfMemory: return synOutOfDeviceMemory;
    default: return synFailHccl;
  }
}

synStatus acquire(synDeviceId* device) {
  if (device == nullptr) return synInvalidArgument;
  Guard guard(process().mutex);
  if (!process().is_initialized) return synUninitialized;
  if (process().is_acquired) return synDeviceAlreadyAcquired;
  process().is_acquired = true;
  *device = the_device;
  return synSuccess;
}

synStatus copy_text(const char* text, char* to, uint64_t size) {
  if (to == nullptr || size <= std::strlen(text)) return synInvalidArgument;
  std::memcpy(to, text, std::strlen(text) + 1);
  return synSuccess;
}

uint64_t host_bytes(int pages) {
  return uint64_t(sysconf(pages)) * uint64_t(sysconf(_SC_PAGESIZE));
}

template <typename Info>
synStatus describe(synDeviceId device, Info* info) {
  if (info == nullptr || !is_device(device)) return synInvalidArgument;
  *info = {};
  info->dramSize = host_bytes(_SC_PHYS_PAGES);
  info->dramEnabled = 1;
  info->deviceId = the_device;
  info->deviceType = synDeviceEmulator;
  return synSuccess;
}

template <typename Function>
synStatus queue(synStreamHandle stream, Function function) {
  auto held = std::make_unique<Function>(std::move(function));
  auto run = [](void* argument) {
    std::unique_ptr<Function> owned(static_cast<Function*>(argument));
    (*owned)();
  };
  hcclResult_t result = hcclStreamHostFunction(stream, run, held.get());
  if (result == hcclSuccess) held.release();
  return status_of(result);
}

template <typename Element>
synStatus fill(uint64_t address, Element value, size_t count, synStreamHandle stream) {
  if (address == 0 && count > 0) return synInvalidArgument;
  auto* to = reinterpret_cast<Element*>(address);
  return queue(stream, [=] { std::fill(to, to + count, value); });
}

synStatus refuse(const char* call) {
  std::fprintf(stderr,
               "libSynapse of hccl-py: %s: this library moves data between processes and cannot "
               "compute; run the graph on a Gaudi\n",
               call);
  return synUnsupported;
}

}  // namespace

extern "C" {

synStatus synInitialize() {
  Guard guard(process().mutex);
  if (process().is_initialized) return synAlreadyInitialized;
  process().is_initialized = true;
  return synSuccess;
}

synStatus synDestroy() {
  Guard guard(process().mutex);
  if (!process().is_initialized) return synUninitialized;
  process().is_initialized = process().is_acquired = false;
  return synSuccess;
}

synStatus synDeviceGetCount(uint32_t* pCount) {
  if (pCount == nullptr) return synInvalidArgument;
  *pCount = 1;
  return synSuccess;
}

synStatus synDeviceGetCountByDeviceType(uint32_t* pCount, const synDeviceType deviceType) {
  if (pCount == nullptr) return synInvalidArgument;
  *pCount = deviceType == synDeviceEmulator;
  return synSuccess;
}

synStatus synDeviceAcquire(synDeviceId* pDeviceId, const char*) { return acquire(pDeviceId); }

synStatus synDeviceAcquireByDeviceType(synDeviceId* pDeviceId, const synDeviceType deviceType) {
  bool is_ours = deviceType == synDeviceEmulator || deviceType == synDeviceTypeInvalid;
  return is_ours ? acquire(pDeviceId) : synNoDeviceFound;
}

synStatus synDeviceAcquireByModuleId(synDeviceId* pDeviceId, const synModuleId moduleId) {
  return moduleId == INVALID_MODULE_ID ? synInvalidArgument : acquire(pDeviceId);
}

synStatus synDeviceRelease(const synDeviceId deviceId) {
  if (!is_device(deviceId)) return synInvalidArgument;
  Guard guard(process().mutex);
  process().is_acquired = false;
  return synSuccess;
}

synStatus synDeviceSynchronize(const synDeviceId deviceId) {
  if (!is_device(deviceId)) return synInvalidArgument;
  std::set<synStreamHandle> streams;
  {
    Guard guard(process().mutex);
    streams = process().streams;
  }
  synStatus first = synSuccess;
  for (synStreamHandle stream : streams) {
    synStatus status = synStreamSynchronize(stream);
    if (first == synSuccess) first = status;
  }
  return first;
}

synStatus synDeviceGetMemoryInfo(const synDeviceId deviceId, uint64_t* free, uint64_t* total) {
  if (!is_device(deviceId) || free == nullptr || total == nullptr) return synInvalidArgument;
  *free = host_bytes(_SC_AVPHYS_PAGES);
  *total = host_bytes(_SC_PHYS_PAGES);
  return synSuccess;
}

synStatus synDeviceGetInfo(const synDeviceId deviceId, synDeviceInfo* pDeviceInfo) {
  return describe(deviceId, pDeviceInfo);
}

synStatus synDeviceGetInfoV2(const synDeviceId deviceId, synDeviceInfoV2* pDeviceInfo) {
  return describe(deviceId, pDeviceInfo);
}

synStatus synDeviceGetName(char* pName, const int len, const synDeviceId deviceId) {
  return is_device(deviceId) ? copy_text(device_name, pName, uint64_t(std::max(len, 0)))
                             : synInvalidArgument;
}

synStatus synDriverGetVersion(char* pDriverVersion, const int len) {
  return copy_text(driver_version, pDriverVersion, uint64_t(std::max(len, 0)));
}

synStatus synConfigurationGet(const char* name, char* value, uint64_t size) {
  if (name == nullptr) return synInvalidArgument;
  const char* found = getenv(name);
  return copy_text(found != nullptr ? found : "", value, size);
}

synStatus synConfigurationSet(const char* name, const char* value) {
  if (name == nullptr || value == nullptr) return synInvalidArgument;
  return setenv(name, value, 1) == 0 ? synSuccess : synFail;
}

synStatus synDeviceMalloc(const synDeviceId deviceId, const uint64_t size, uint64_t, const uint32_t,
                          uint64_t* buffer) {
  if (!is_device(deviceId) || buffer == nullptr) return synInvalidArgument;
  void* memory = nullptr;
  hcclResult_t result = hcclMemAlloc(&memory, size);
  *buffer = reinterpret_cast<uint64_t>(memory);
  return status_of(result);
}

synStatus synDeviceFree(const synDeviceId deviceId, const uint64_t buffer, const uint32_t) {
  if (!is_device(deviceId)) return synInvalidArgument;
  return status_of(hcclMemFree(reinterpret_cast<void*>(buffer)));
}

synStatus synHostMalloc(const synDeviceId deviceId, const uint64_t size, const uint32_t,
                        void** buffer) {
  if (!is_device(deviceId) || buffer == nullptr || size == 0) return synInvalidArgument;
  constexpr size_t page = 4096;
  *buffer = aligned_alloc(page, (size + page - 1) / page * page);
  return *buffer != nullptr ? synSuccess : synOutOfHostMemory;
}

synStatus synHostFree(const synDeviceId, const void* buffer, const uint32_t) {
  free(const_cast<void*>(buffer));
  return synSuccess;
}

synStatus synHostMap(const synDeviceId deviceId, const uint64_t size, const void* buffer) {
  if (!is_device(deviceId) || buffer == nullptr || size == 0) return synInvalidArgument;
  Guard guard(process().mutex);
  process().mapped.insert(buffer);
  return synSuccess;
}

synStatus synHostUnmap(const synDeviceId deviceId, const void* buffer) {
  if (!is_device(deviceId)) return synInvalidArgument;
  Guard guard(process().mutex);
  auto found = process().mapped.find(buffer);
  if (found == process().mapped.end()) return synMappingNotFound;
  process().mapped.erase(found);
  return synSuccess;
}

synStatus synMemCopyAsync(const synStreamHandle streamHandle, const uint64_t src,
                          const uint64_t size, const uint64_t dst, const synDmaDir direction) {
  return synMemCopyAsyncMultiple(streamHandle, &src, &size, &dst, direction, 1);
}

synStatus synMemCopyAsyncMultiple(const synStreamHandle streamHandle, const uint64_t* src,
                                  const uint64_t* size, const uint64_t* dst,
                                  const synDmaDir direction, const uint64_t numCopies) {
  if (direction < HOST_TO_DRAM || direction >= DIRECTION_ENUM_MAX) return synInvalidArgument;
  if (src == nullptr || size == nullptr || dst == nullptr) return synInvalidArgument;
  struct Copy {
    uint64_t from, size, to;
  };
  std::vector<Copy> copies;
  for (uint64_t i = 0; i < numCopies; ++i) {
    if (size[i] > 0 && (src[i] == 0 || dst[i] == 0)) return synInvalidArgument;
    copies.push_back({src[i], size[i], dst[i]});
  }
  return queue(streamHandle, [copies = std::move(copies)] {
    for (const Copy& copy : copies) {
      std::memmove(reinterpret_cast<void*>(copy.to), reinterpret_cast<const void*>(copy.from),
                   copy.size);
    }
  });
}

synStatus synMemsetD8Async(uint64_t pDeviceMem, const unsigned char value,
                           const size_t numOfElements, const synStreamHandle streamHandle) {
  return fill(pDeviceMem, value, numOfElements, streamHandle);
}

synStatus synMemsetD16Async(uint64_t pDeviceMem, const uint16_t value, const size_t numOfElements,
                            const synStreamHandle streamHandle) {
  return fill(pDeviceMem, value, numOfElements, streamHandle);
}

synStatus synMemsetD32Async(uint64_t pDeviceMem, const uint32_t value, const size_t numOfElements,
                            const synStreamHandle streamHandle) {
  return fill(pDeviceMem, value, numOfElements, streamHandle);
}

synStatus synStreamCreateGeneric(synStreamHandle* pStreamHandle, const synDeviceId deviceId,
                                 const uint32_t) {
  if (pStreamHandle == nullptr || !is_device(deviceId)) return synInvalidArgument;
  hcclStream_t stream = nullptr;
  hcclResult_t result = hcclStreamCreate(&stream);
  *pStreamHandle = static_cast<synStreamHandle>(stream);
  if (result != hcclSuccess) return status_of(result);
  Guard guard(process().mutex);
  process().streams.insert(*pStreamHandle);
  return synSuccess;
}

synStatus synStreamDestroy(const synStreamHandle streamHandle) {
  {
    Guard guard(process().mutex);
    process().streams.erase(streamHandle);
  }
  return status_of(hcclStreamDestroy(streamHandle));
}

synStatus synStreamSynchronize(const synStreamHandle streamHandle) {
  return status_of(hcclStreamSynchronize(streamHandle));
}

synStatus synStreamQuery(const synStreamHandle streamHandle) {
  return status_of(hcclStreamQuery(streamHandle));
}

synStatus synStreamWaitEvent(const synStreamHandle streamHandle, synEventHandle eventHandle,
                             const uint32_t) {
  return status_of(hcclStreamWaitEvent(streamHandle, eventHandle));
}

synStatus synEventCreate(synEventHandle* pEventHandle, const synDeviceId, const uint32_t) {
  if (pEventHandle == nullptr) return synInvalidArgument;
  hcclEvent_t event = nullptr;
  hcclResult_t result = hcclEventCreate(&event);
  *pEventHandle = static_cast<synEventHandle>(event);
  return status_of(result);
}

synStatus synEventDestroy(synEventHandle eventHandle) {
  return status_of(hcclEventDestroy(eventHandle));
}

synStatus synEventRecord(synEventHandle eventHandle, const synStreamHandle streamHandle) {
  return status_of(hcclEventRecord(eventHandle, streamHandle));
}

synStatus synEventQuery(const synEventHandle eventHandle) {
  return status_of(hcclEventQuery(eventHandle));
}

synStatus synEventSynchronize(const synEventHandle eventHandle) {
  return status_of(hcclEventSynchronize(eventHandle));
}

synStatus synEventElapsedTime(uint64_t* pNanoSeconds, const synEventHandle eventHandleStart,
                              const synEventHandle eventHandleEnd) {
  return status_of(hcclEventElapsedTime(pNanoSeconds, eventHandleStart, eventHandleEnd));
}

synStatus synGraphCreate(synGraphHandle*, const synDeviceType) { return refuse("synGraphCreate"); }

synStatus synGraphCompile(synRecipeHandle*, const synGraphHandle, const char*, const char*) {
  return refuse("synGraphCompile");
}

synStatus synRecipeDeSerialize(synRecipeHandle*, const char*) {
  return refuse("synRecipeDeSerialize");
}

synStatus synLaunch(const synStreamHandle, const void*, const uint32_t, uint64_t,
                    const synRecipeHandle, uint32_t) {
  return refuse("synLaunch");
}

}  // extern "C"
