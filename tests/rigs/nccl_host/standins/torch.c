/* What a CUDA build of torch calls of the runtime beside NCCL: it has memory, streams and kernels, and its kernels compute
 * nothing and end at once. Only those of NCCL, which launch otherwise, wait for other ranks (runtime.c).
 */
#define _GNU_SOURCE
#include "device.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string.h>

#define API __attribute__((visibility("default")))

/* ---- kernels */

API void **__cudaRegisterFatBinary(void *code) {
  static void *handle;
  return &handle;
}
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                 cudaStream_t stream) {
  return error_now();
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                   cudaStream_t stream) {
  return error_now();
}
API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                            cudaStream_t stream) {
  return error_now();
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size,
                                                                      size_t shared, unsigned flags) {
  *blocks = 2;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, size, shared, 0);
}
API cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) { return cudaMalloc(address, 1 << 20); }

/* torch's watchdog aborts a communicator while a kernel of it runs, which would see that and end: this library is before NCCL's
 * in LD_PRELOAD.
 */
API int ncclCommAbort(void *communicator) {
  extern void rig_end_kernels(void);
  int (*of_nccl)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "ncclCommAbort");
  rig_end_kernels();
  return of_nccl(communicator);
}

/* ---- devices and their memory */

API const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "cudaSuccess";
  case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
  case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
  case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
  default: return "cudaErrorUnknown";
  }
}
API cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *total = (size_t)setting("RIG_MEMORY_MB", 81920) << 20;
  *free = *total - memory_used();
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int which) { return cudaMemPoolCreate(pool, NULL); }
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  *(unsigned long long *)value = 0;
  return cudaSuccess;
}
API cudaError_t cudaMallocAsync(void **address, size_t size, cudaStream_t stream) { return cudaMalloc(address, size); }
API cudaError_t cudaMemcpyPeerAsync(void *to, int device, const void *from, int other, size_t size, cudaStream_t stream) {
  return cudaMemcpy(to, from, size, cudaMemcpyDefault);
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t pitch, const void *from, size_t other, size_t width, size_t height,
                                  enum cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++) memmove((char *)to + row * pitch, (const char *)from + row * other, width);
  return cudaSuccess;
}

/* ---- streams and events */

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
API cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = 0;
  return cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
  function(stream, cudaSuccess, data);
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecord(event, stream);
}
