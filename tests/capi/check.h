/* What the C tests share: ranks, the id, assertions, and elements of every type as doubles. */
#ifndef CHECK_H_
#define CHECK_H_

#include <hccl/hccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, world_size;

#define EXPECT(condition, ...)                                                       \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "rank %d, %s:%d: %s: ", rank, __FILE__, __LINE__, #condition); \
      fprintf(stderr, __VA_ARGS__);                                                  \
      fprintf(stderr, "\n");                                                         \
      _Exit(1);                                                                      \
    }                                                                                \
  } while (0)
#define OK(call)                                                                \
  do {                                                                          \
    hcclResult_t result_ = (call);                                              \
    EXPECT(result_ == hcclSuccess, "%s: %s", #call, hcclGetLastErrorMessage()); \
  } while (0)
/* The call fails with this code, and with a text that has `part`. */
#define FAILS(code, part, call)                                                               \
  do {                                                                                        \
    hcclResult_t result_ = (call);                                                            \
    const char* text_ = hcclGetLastErrorMessage();                                            \
    EXPECT(result_ == (code), "%s returned %d: %s", #call, (int)result_, text_);              \
    EXPECT(text_ != NULL && strstr(text_, part), "%s: %s", #call, text_ ? text_ : "no text"); \
  } while (0)

/* Ranks meet by a file that rank 0 writes; every number has its own. */
static hcclUniqueId id_of(int number) {
  char path[4096], ready[4096];
  hcclUniqueId id;
  memset(&id, 0, sizeof(id));
  snprintf(path, sizeof(path), "%s/id%d.part", getenv("TEST_FOLDER"), number);
  snprintf(ready, sizeof(ready), "%s/id%d", getenv("TEST_FOLDER"), number);
  if (rank == 0) {
    OK(hcclGetUniqueId(&id));
    FILE* file = fopen(path, "wb");
    EXPECT(file && fwrite(&id, sizeof(id), 1, file) == 1 && !fclose(file), "%s", path);
    EXPECT(rename(path, ready) == 0, "%s", ready);
  } else {
    FILE* file;
    while ((file = fopen(ready, "rb")) == NULL) continue;
    EXPECT(fread(&id, sizeof(id), 1, file) == 1, "%s", ready);
    fclose(file);
  }
  return id;
}

static hcclComm_t connected(int number) {
  hcclComm_t comm;
  hcclConfig_t config = HCCL_CONFIG_INITIALIZER;
  config.timeout_s = 60;
  OK(hcclCommInitRankConfig(&comm, world_size, id_of(number), rank, &config));
  return comm;
}

static inline void begin(void) {
  rank = atoi(getenv("RANK"));
  world_size = atoi(getenv("WORLD_SIZE"));
}

static const size_t type_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static inline void store(void* memory, size_t i, hcclDataType_t type, double value) {
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  switch (type) {
    case hcclInt8: ((int8_t*)memory)[i] = (int8_t)value; break;
    case hcclUint8: ((uint8_t*)memory)[i] = (uint8_t)value; break;
    case hcclInt32: ((int32_t*)memory)[i] = (int32_t)value; break;
    case hcclUint32: ((uint32_t*)memory)[i] = (uint32_t)value; break;
    case hcclInt64: ((int64_t*)memory)[i] = (int64_t)value; break;
    case hcclUint64: ((uint64_t*)memory)[i] = (uint64_t)value; break;
    case hcclFloat32: ((float*)memory)[i] = single; break;
    case hcclFloat64: ((double*)memory)[i] = value; break;
    case hcclBfloat16: ((uint16_t*)memory)[i] = (uint16_t)(bits >> 16); break;
    default: /* float16; the tests have no others than 0 and normal numbers */
      ((uint16_t*)memory)[i] =
          value == 0 ? 0
                     : (uint16_t)(bits >> 16 & 0x8000) |
                           (uint16_t)(((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
  }
}

static inline double load(const void* memory, size_t i, hcclDataType_t type) {
  uint32_t half, bits;
  float single;
  switch (type) {
    case hcclInt8: return ((const int8_t*)memory)[i];
    case hcclUint8: return ((const uint8_t*)memory)[i];
    case hcclInt32: return ((const int32_t*)memory)[i];
    case hcclUint32: return ((const uint32_t*)memory)[i];
    case hcclInt64: return (double)((const int64_t*)memory)[i];
    case hcclUint64: return (double)((const uint64_t*)memory)[i];
    case hcclFloat32: return ((const float*)memory)[i];
    case hcclFloat64: return ((const double*)memory)[i];
    default: break;
  }
  half = ((const uint16_t*)memory)[i];
  bits = half << 16;
  if (type == hcclFloat16) {
    bits =
        (half & 0x7fff) == 0 ? 0 : (half & 0x8000) << 16 | (((half & 0x7fff) << 13) + (112u << 23));
  }
  memcpy(&single, &bits, 4);
  return single;
}
#endif
