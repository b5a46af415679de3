/* Stands in for libcuda.so.1: the driver's functions that NCCL asks the runtime for, most of them for memory that ranks share.
 *
 * They lie in the same library as the runtime: NCCL never opens libcuda.so.1 by itself for what this rig does.
 */
#define _GNU_SOURCE
#include "device.h"
#include <cuda.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY (2ul << 20)

extern void launch(void *stream);
extern const char *cudaGetErrorString(int error);

/* ---- contexts and devices */

static CUresult device_get(CUdevice *device, int number) {
  *device = number;
  return number < gpus() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  extern int cudaDeviceGetAttribute(int *, int, int);
  return cudaDeviceGetAttribute(value, attribute, device);
}
static CUresult device_uuid(CUuuid *uuid, CUdevice device) {
  memset(uuid, 0, sizeof *uuid);
  uuid->bytes[0] = 0x47;
  uuid->bytes[15] = device;
  return CUDA_SUCCESS;
}
static CUresult context_current(CUcontext *context) {
  *context = (CUcontext)(uintptr_t)(current_device() + 1);
  return CUDA_SUCCESS;
}
static CUresult context_create(CUcontext *context) { return context_current(context); }
static CUresult context_device(CUdevice *device) {
  *device = current_device();
  return CUDA_SUCCESS;
}
static CUresult nothing(void) { return CUDA_SUCCESS; }
static CUresult unsupported(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static CUresult error_string(CUresult error, const char **text) {
  *text = cudaGetErrorString(error);
  return CUDA_SUCCESS;
}

/* ---- memory by handles */

static CUresult granularity(size_t *size) {
  *size = GRANULARITY;
  return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags) {
  if (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !memory_take(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  struct handle *handle = handle_new(size, properties, sizeof *properties);
  *out = (uintptr_t)handle;
  return handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult release(CUmemGenericAllocationHandle handle) {
  handle_drop((struct handle *)handle);
  return CUDA_SUCCESS;
}
static CUresult retain(CUmemGenericAllocationHandle *out, void *address) {
  struct block *block = block_at(address);
  if (!block || !block->handle) return CUDA_ERROR_INVALID_VALUE;
  handle_keep(block->handle);
  *out = (uintptr_t)block->handle;
  return CUDA_SUCCESS;
}
static CUresult properties_of(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
  return handle_properties((struct handle *)handle, properties, sizeof *properties) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult export(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long flags) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  *(int *)out = dup(((struct handle *)handle)->file);
  return *(int *)out < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
static CUresult import(CUmemGenericAllocationHandle *out, void *file, CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  struct handle *handle = handle_of_file((int)(uintptr_t)file);
  *out = (uintptr_t)handle;
  return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult reserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
  size_t aligned = alignment < GRANULARITY ? GRANULARITY : alignment;
  char *whole = mmap(NULL, size + aligned, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = ((uintptr_t)whole + aligned - 1) & ~(aligned - 1);
  return CUDA_SUCCESS; /* what lies before and after stays reserved: it costs nothing */
}
static CUresult map(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags) {
  return block_map((struct handle *)handle, offset, size, (void *)at, current_device()) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult unmap(CUdeviceptr at, size_t size) {
  struct block block;
  if (block_remove((void *)at, &block) && block.handle) handle_drop(block.handle);
  mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  struct block *block = block_at((void *)address);
  if (!block) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = (uintptr_t)block->at;
  if (size) *size = block->size;
  return CUDA_SUCCESS;
}
static CUresult pointer_attribute(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
  struct block *block = block_at((void *)address);
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)out = block->kind == HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = block->device; break;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)out = block->handle != NULL; break;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = (uintptr_t)block->at; break;
  default: *(int *)out = 0;
  }
  return CUDA_SUCCESS;
}

/* ---- NVLink SHARP: an object of multicast is a handle like others, whatever is bound to it */

static CUresult multicast_create(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *properties) {
  CUmemAllocationProp none = {0};
  struct handle *handle = handle_new(properties->size, &none, sizeof none);
  *out = (uintptr_t)handle;
  return handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- kernels and values on streams */

static CUresult kernel(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
  launch(config->hStream);
  return error_now();
}
static CUresult plain_kernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, CUstream stream, void **arguments, void **extra) {
  launch(stream);
  return error_now();
}
static CUresult write_32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  *(volatile cuuint32_t *)at = value;
  return CUDA_SUCCESS;
}
static CUresult write_64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags) {
  *(volatile cuuint64_t *)at = value;
  return CUDA_SUCCESS;
}

void *driver_function(const char *name) {
  static const struct { const char *name; void *function; } functions[] = {
      {"cuDeviceGet", device_get}, {"cuDeviceGetAttribute", device_attribute}, {"cuDeviceGetUuid", device_uuid},
      {"cuGetErrorString", error_string}, {"cuGetErrorName", error_string},
      {"cuCtxCreate", context_create}, {"cuCtxDestroy", nothing}, {"cuCtxGetCurrent", context_current},
      {"cuCtxSetCurrent", nothing}, {"cuCtxGetDevice", context_device},
      {"cuMemGetAddressRange", address_range}, {"cuMemAddressReserve", reserve}, {"cuMemAddressFree", nothing},
      {"cuMemCreate", create}, {"cuMemRelease", release}, {"cuMemMap", map}, {"cuMemUnmap", unmap},
      {"cuMemSetAccess", nothing}, {"cuMemRetainAllocationHandle", retain},
      {"cuMemGetAllocationGranularity", granularity}, {"cuMemGetAllocationPropertiesFromHandle", properties_of},
      {"cuMemExportToShareableHandle", export}, {"cuMemImportFromShareableHandle", import},
      {"cuMemGetHandleForAddressRange", unsupported},
      {"cuPointerGetAttribute", pointer_attribute}, {"cuPointerSetAttribute", nothing},
      {"cuMulticastCreate", multicast_create}, {"cuMulticastGetGranularity", granularity},
      {"cuMulticastAddDevice", nothing}, {"cuMulticastBindMem", nothing}, {"cuMulticastBindAddr", nothing},
      {"cuMulticastUnbind", nothing},
      {"cuLaunchKernel", plain_kernel}, {"cuLaunchKernelEx", kernel},
      {"cuStreamBatchMemOp", nothing}, {"cuStreamWaitValue32", nothing}, {"cuStreamWaitValue64", nothing},
      {"cuStreamWriteValue32", write_32}, {"cuStreamWriteValue64", write_64}};
  for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)
    if (!strcmp(functions[i].name, name)) return functions[i].function;
  return NULL;
}
