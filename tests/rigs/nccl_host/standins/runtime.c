/* Stands in for libcudart.so.13: what NCCL's host code calls of the CUDA runtime, without a GPU.
 *
 * Memory is that of memory.c, a copy is memmove. Kernels compute nothing: a stream only counts those of NCCL, and is busy
 * until all ranks have launched as many (RIG_MEET), as kernels of a collective wait for one another.
 */
#define _GNU_SOURCE
#include "device.h"
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

static __thread cudaError_t last;
static __thread int device;

int current_device(void) { return device; }

static cudaError_t answer(int code) {
  if (code && code != cudaErrorNotReady) last = code;
  return code;
}

/* ---- kernels, streams, events */

#define MOST_RANKS 64

struct stream { long kernels; };
struct event { long kernels; };

static struct stream default_stream;
static long launched, ended;
static volatile long *progress; /* of each rank: how many kernels it has launched */

static void meet(void) {
  const char *path = getenv("RIG_MEET");
  static long alone[MOST_RANKS];
  if (progress) return;
  progress = alone;
  if (!path) return;
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof alone)) return;
  void *shared = mmap(NULL, sizeof alone, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shared != MAP_FAILED) progress = shared;
  progress[this_rank()] = 0; /* of an attempt before */
  close(file);
}

static int busy(long kernels) {
  if (kernels <= ended || !getenv("RIG_MEET")) return 0;
  for (int rank = 0; rank < ranks(); rank++)
    if (progress[rank] < kernels) return 1;
  return 0;
}

/* Kernels look at NCCL's abort flag; these cannot, so that who aborts a communicator says so here. */
API void rig_end_kernels(void) { ended = launched; }

int error_now(void) {
  int code = 0, from = 1;
  const char *text = getenv("RIG_ERROR");
  if (text) sscanf(text, "%d@%d", &code, &from);
  return code && from > 0 && launched >= from ? code : 0;
}

static struct stream *stream_of(cudaStream_t stream) {
  return (uintptr_t)stream < 16 ? &default_stream : (struct stream *)stream;
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  meet();
  stream_of(config->stream)->kernels = ++launched;
  if (error_now()) return answer(error_now());
  progress[this_rank()] = launched;
  return cudaSuccess;
}

void launch(void *stream) {
  cudaLaunchConfig_t config = {.stream = stream};
  cudaLaunchKernelExC(&config, NULL, NULL);
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  const char *broken = getenv("RIG_ERROR");
  if (broken && strstr(broken, "@0")) return answer(atoi(broken));
  *stream = calloc(1, sizeof(struct stream));
  return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  return cudaStreamCreateWithFlags(stream, flags);
}
API cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return answer(error_now() ? error_now() : busy(stream_of(stream)->kernels) ? cudaErrorNotReady : cudaSuccess);
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  while (busy(stream_of(stream)->kernels)) usleep(200);
  return answer(error_now());
}
API cudaError_t cudaDeviceSynchronize(void) {
  while (busy(launched)) usleep(200);
  return answer(error_now());
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  long kernels = ((struct event *)event)->kernels;
  if (kernels > stream_of(stream)->kernels) stream_of(stream)->kernels = kernels;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
  *id = (uintptr_t)stream_of(stream);
  return cudaSuccess;
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = calloc(1, sizeof(struct event));
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ((struct event *)event)->kernels = stream_of(stream)->kernels;
  return cudaSuccess;
}
API cudaError_t cudaEventQuery(cudaEvent_t event) {
  return answer(busy(((struct event *)event)->kernels) ? cudaErrorNotReady : error_now());
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  while (busy(((struct event *)event)->kernels)) usleep(200);
  return answer(error_now());
}
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = 1;
  return cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  function(data);
  return cudaSuccess;
}

/* ---- devices */

API cudaError_t cudaPeekAtLastError(void) { return last; }
API cudaError_t cudaGetLastError(void) {
  cudaError_t error = last;
  last = cudaSuccess;
  return error;
}
API const char *cudaGetErrorString(cudaError_t error) {
  static const struct { int code; const char *text; } texts[] = {
      {0, "no error"}, {1, "invalid argument"}, {2, "out of memory"}, {3, "initialization error"},
      {35, "CUDA driver version is insufficient for CUDA runtime version"}, {100, "no CUDA-capable device is detected"},
      {101, "invalid device ordinal"}, {600, "device not ready"}, {700, "an illegal memory access was encountered"},
      {719, "unspecified launch failure"}, {801, "operation not supported"}, {802, "system not yet initialized"}};
  for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].code == (int)error) return texts[i].text;
  return "unknown error";
}
API cudaError_t cudaDriverGetVersion(int *version) {
  *version = 13000;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceCount(int *count) {
  *count = gpus();
  return answer(*count ? cudaSuccess : cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int *current) {
  *current = device;
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int wanted) {
  if (wanted < 0 || wanted >= gpus()) return answer(cudaErrorInvalidDevice);
  device = wanted;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int which) {
  switch ((int)attribute) {
  case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
  case cudaDevAttrMultiProcessorCount: *value = 132; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
  case 102: /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, and by handles that are files */
  case 103: *value = 1; break;
  case 132: *value = setting("RIG_NVLS", 0); break; /* CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED */
  default: *value = 0; /* also GPUDirect RDMA, DMA-BUF, fabric handles; the host's NUMA node is 0 */
  }
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int which) {
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "NVIDIA H100 80GB HBM3");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->sharedMemPerBlock = 49152;
  properties->totalGlobalMem = (size_t)setting("RIG_MEMORY_MB", 81920) << 20;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int which) {
  snprintf(text, length, "0000:%02X:00.0", pci_bus(which));
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetByPCIBusId(int *which, const char *text) {
  unsigned domain, bus;
  if (sscanf(text, "%x:%x", &domain, &bus) == 2)
    for (*which = 0; *which < gpus(); ++*which)
      if (pci_bus(*which) == bus) return cudaSuccess;
  return answer(cudaErrorInvalidDevice);
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int one, int other) {
  *can = one != other;
  return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                 unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  *function = driver_function(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

/* ---- memory */

API cudaError_t cudaMalloc(void **address, size_t size) {
  size = (size + 65535) & ~65535ul;
  *address = NULL;
  if (!size) return cudaSuccess;
  if (!memory_take(size)) return answer(cudaErrorMemoryAllocation);
  struct handle *handle = handle_new(size, NULL, 0);
  if (handle) *address = block_map(handle, 0, size, NULL, device);
  return answer(*address ? cudaSuccess : cudaErrorMemoryAllocation);
}
API cudaError_t cudaMallocFromPoolAsync(void **address, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
  return cudaMalloc(address, size);
}
API cudaError_t cudaFree(void *address) {
  struct block block;
  if (!address) return cudaSuccess;
  if (!block_remove(address, &block)) return answer(cudaErrorInvalidValue);
  munmap(block.at, block.size);
  memory_give(block.size);
  handle_drop(block.handle);
  return cudaSuccess;
}
API cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) { return cudaFree(address); }
API cudaError_t cudaHostAlloc(void **address, size_t size, unsigned flags) {
  size = (size + 4095) & ~4095ul;
  *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*address == MAP_FAILED) return answer(cudaErrorMemoryAllocation);
  block_add(*address, size, HOST, device, NULL);
  return cudaSuccess;
}
API cudaError_t cudaFreeHost(void *address) {
  struct block block;
  if (address && block_remove(address, &block)) munmap(block.at, block.size);
  return cudaSuccess;
}
API cudaError_t cudaHostRegister(void *address, size_t size, unsigned flags) {
  block_add(address, size, HOST, device, NULL);
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void *address) {
  struct block block;
  block_remove(address, &block);
  return cudaSuccess;
}
API cudaError_t cudaHostGetDevicePointer(void **seen, void *address, unsigned flags) {
  *seen = address;
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
  struct block *block = block_at(address);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = !block ? cudaMemoryTypeUnregistered : block->kind == HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = block ? block->device : -2;
  attributes->devicePointer = block ? (void *)address : NULL;
  return cudaSuccess;
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  memmove(to, from, size);
  return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy(to, from, size, kind);
}
API cudaError_t cudaMemset(void *address, int value, size_t size) {
  /* Zeros over many pages are a hole in the file: else buffers that nobody uses would take the host's memory. */
  char *first = (char *)(((uintptr_t)address + 4095) & ~4095ul), *after = (char *)(((uintptr_t)address + size) & ~4095ul);
  struct block *block = block_at(address);
  if (!value && after > first && block && block->kind == DEVICE && !madvise(first, after - first, MADV_REMOVE)) {
    memset(address, 0, first - (char *)address);
    memset(after, 0, (char *)address + size - after);
  } else memset(address, value, size);
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void *address, int value, size_t size, cudaStream_t stream) {
  return cudaMemset(address, value, size);
}

/* Memory of another process, where NCCL does not use the driver's own handles (NCCL_CUMEM_ENABLE=0) */
struct shared { int process, file; size_t size; };

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *address) {
  struct block *block = block_at(address);
  if (!block || !block->handle) return answer(cudaErrorInvalidValue);
  memset(out, 0, sizeof *out);
  *(struct shared *)out = (struct shared){getpid(), block->handle->file, block->size};
  return cudaSuccess;
}
API cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t in, unsigned flags) {
  struct shared *shared = (struct shared *)&in;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", shared->process, shared->file);
  int file = open(path, O_RDWR | O_CLOEXEC);
  struct handle *handle = file < 0 ? NULL : handle_of_file(file);
  if (file >= 0) close(file);
  *address = handle ? block_map(handle, 0, shared->size, NULL, device) : NULL;
  return answer(*address ? cudaSuccess : cudaErrorInvalidValue);
}
API cudaError_t cudaIpcCloseMemHandle(void *address) {
  struct block block;
  if (!block_remove(address, &block)) return answer(cudaErrorInvalidValue);
  munmap(block.at, block.size);
  handle_drop(block.handle);
  return cudaSuccess;
}

/* ---- functions of kernels, and graphs, of which there are none */

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->maxDynamicSharedSizeBytes = 232448;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}
API cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *symbol) {
  *function = (cudaFunction_t)symbol;
  return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                         cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                         const cudaGraphEdgeData **edges, size_t *count) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
  *pool = (cudaMemPool_t)1;
  return cudaSuccess;
}
