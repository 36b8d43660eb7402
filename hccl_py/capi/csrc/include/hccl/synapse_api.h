/* The calls of Gaudi's device runtime that HCCL programs make, on the host. This is no Gaudi.
 *
 * "Device" memory is host memory of hcclMemAlloc, a stream is an ordered queue, an event a time.
 * Names, types, values and meanings are those of Synapse. A process has one device, of the type
 * synDeviceEmulator. Calls that compute return synUnsupported and say so on stderr. Link
 * libSynapse; streams and events are those of hccl.h. */
#ifndef SYNAPSE_API_H
#define SYNAPSE_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum synStatus {
  synSuccess = 0,
  synInvalidArgument = 1,
  synOutOfHostMemory = 3,
  synOutOfDeviceMemory = 4,
  synObjectNotInitialized = 6,
  synNoDeviceFound = 8,
  synDeviceTypeMismatch = 9,
  synUnsupported = 18,
  synDeviceAlreadyAcquired = 20,
  synBusy = 22,
  synFail = 26,
  synUninitialized = 28,
  synAlreadyInitialized = 29,
  synInvalidEventHandle = 33,
  synMappingNotFound = 34,
  synFailHccl = 40
} synStatus;

typedef enum synDmaDir { HOST_TO_DRAM, DRAM_TO_HOST, DRAM_TO_DRAM, DIRECTION_ENUM_MAX } synDmaDir;

typedef enum synDeviceType {
  synDeviceGreco = 1,
  synDeviceGaudi = 2,
  synDeviceGaudi2 = 4,
  synDeviceGaudi3 = 5,
  synDeviceEmulator = 6, /* this one */
  synDeviceTypeInvalid = 7,
  synDeviceTypeSize = 8
} synDeviceType;

enum eventCreateFlags { EVENT_COLLECT_TIME = 1 };

typedef uint32_t synModuleId;
typedef uint32_t synDeviceId;
typedef struct InternalStreamHandle* synStreamHandle;
typedef struct EventInterfaceExternal* synEventHandle;
typedef struct InternalGraphHandle* synGraphHandle;
typedef struct InternalRecipeHandle* synRecipeHandle;

static const uint32_t INVALID_MODULE_ID = 0xFFFFFFFF;
static const synDeviceId SYN_INVALID_DEVICE_ID = 0xFFFFFFFF;

typedef struct synDeviceInfo {
  uint64_t sramBaseAddress;
  uint64_t dramBaseAddress;
  uint32_t sramSize;
  uint64_t dramSize; /* of the host */
  uint64_t tpcEnabledMask;
  uint8_t dramEnabled;
  uint32_t deviceId;
  uint32_t fd;
  synDeviceType deviceType;
} synDeviceInfo;

typedef struct synDeviceInfoV2 {
  uint64_t sramBaseAddress;
  uint64_t dramBaseAddress;
  uint32_t sramSize;
  uint64_t dramSize;
  uint64_t tpcEnabledMask;
  uint8_t dramEnabled;
  uint32_t deviceId;
  uint32_t fd;
  synDeviceType deviceType;
  uint8_t deviceIndex;
  uint64_t globalHbmBaseAddress;
} synDeviceInfoV2;

/* ---- The device; any module will do, as there is one */
synStatus synInitialize(void);
synStatus synDestroy(void);
synStatus synDeviceGetCount(uint32_t* pCount);
synStatus synDeviceGetCountByDeviceType(uint32_t* pCount, const synDeviceType deviceType);
synStatus synDeviceAcquire(synDeviceId* pDeviceId, const char* pciBus);
synStatus synDeviceAcquireByDeviceType(synDeviceId* pDeviceId, const synDeviceType deviceType);
synStatus synDeviceAcquireByModuleId(synDeviceId* pDeviceId, const synModuleId moduleId);
synStatus synDeviceRelease(const synDeviceId deviceId);
/* Waits for all streams. */
synStatus synDeviceSynchronize(const synDeviceId deviceId);
/* Of the host, in bytes. */
synStatus synDeviceGetMemoryInfo(const synDeviceId deviceId, uint64_t* free, uint64_t* total);
synStatus synDeviceGetInfo(const synDeviceId deviceId, synDeviceInfo* pDeviceInfo);
synStatus synDeviceGetInfoV2(const synDeviceId deviceId, synDeviceInfoV2* pDeviceInfo);
synStatus synDeviceGetName(char* pName, const int len, const synDeviceId deviceId);
synStatus synDriverGetVersion(char* pDriverVersion, const int len);
/* Variables of the environment; an unset one is "". */
synStatus synConfigurationGet(const char* name, char* value, uint64_t size);
synStatus synConfigurationSet(const char* name, const char* value);

/* ---- Memory; an address of the "device" is one of this process */
synStatus synDeviceMalloc(const synDeviceId deviceId, const uint64_t size, uint64_t reqAddr,
                          const uint32_t flags, uint64_t* buffer);
synStatus synDeviceFree(const synDeviceId deviceId, const uint64_t buffer, const uint32_t flags);
synStatus synHostMalloc(const synDeviceId deviceId, const uint64_t size, const uint32_t flags,
                        void** buffer);
synStatus synHostFree(const synDeviceId deviceId, const void* buffer, const uint32_t flags);
synStatus synHostMap(const synDeviceId deviceId, const uint64_t size, const void* buffer);
synStatus synHostUnmap(const synDeviceId deviceId, const void* buffer);
synStatus synMemCopyAsync(const synStreamHandle streamHandle, const uint64_t src,
                          const uint64_t size, const uint64_t dst, const synDmaDir direction);
synStatus synMemCopyAsyncMultiple(const synStreamHandle streamHandle, const uint64_t* src,
                                  const uint64_t* size, const uint64_t* dst,
                                  const synDmaDir direction, const uint64_t numCopies);
synStatus synMemsetD8Async(uint64_t pDeviceMem, const unsigned char value,
                           const size_t numOfElements, const synStreamHandle streamHandle);
synStatus synMemsetD16Async(uint64_t pDeviceMem, const uint16_t value, const size_t numOfElements,
                            const synStreamHandle streamHandle);
synStatus synMemsetD32Async(uint64_t pDeviceMem, const uint32_t value, const size_t numOfElements,
                            const synStreamHandle streamHandle);

/* ---- Streams and events */
synStatus synStreamCreateGeneric(synStreamHandle* pStreamHandle, const synDeviceId deviceId,
                                 const uint32_t flags);
synStatus synStreamDestroy(const synStreamHandle streamHandle);
/* synFailHccl: a call failed; hcclGetLastErrorMessage() has the text. */
synStatus synStreamSynchronize(const synStreamHandle streamHandle);
synStatus synStreamQuery(const synStreamHandle streamHandle);
synStatus synStreamWaitEvent(const synStreamHandle streamHandle, synEventHandle eventHandle,
                             const uint32_t flags);
synStatus synEventCreate(synEventHandle* pEventHandle, const synDeviceId deviceId,
                         const uint32_t flags);
synStatus synEventDestroy(synEventHandle eventHandle);
synStatus synEventRecord(synEventHandle eventHandle, const synStreamHandle streamHandle);
synStatus synEventQuery(const synEventHandle eventHandle);
synStatus synEventSynchronize(const synEventHandle eventHandle);
synStatus synEventElapsedTime(uint64_t* pNanoSeconds, const synEventHandle eventHandleStart,
                              const synEventHandle eventHandleEnd);

/* ---- Refused: synUnsupported */
synStatus synGraphCreate(synGraphHandle* pGraphHandle, const synDeviceType deviceType);
synStatus synGraphCompile(synRecipeHandle* pRecipeHandle, const synGraphHandle graphHandle,
                          const char* pRecipeName, const char* pBuildLog);
synStatus synRecipeDeSerialize(synRecipeHandle* pRecipeHandle, const char* recipeFileName);
synStatus synLaunch(const synStreamHandle streamHandle, const void* launchTensorsInfo,
                    const uint32_t numberOfTensors, uint64_t pWorkspace,
                    const synRecipeHandle pRecipeHandle, uint32_t flags);

#ifdef __cplusplus
}
#endif
#endif
