/* Calls of the CUDA runtime that have nothing to do here; without CUDA's headers, since they take no notice of arguments. */
#define NOTHING(name) \
  __attribute__((visibility("default"))) int name(void) { return 0; }

NOTHING(cudaDeviceEnablePeerAccess)
NOTHING(cudaDeviceSetLimit)
NOTHING(cudaDeviceSynchronize)
NOTHING(cudaFuncSetAttribute)
NOTHING(cudaGraphAddDependencies)
NOTHING(cudaGraphAddEventRecordNode)
NOTHING(cudaGraphRetainUserObject)
NOTHING(cudaMemPoolDestroy)
NOTHING(cudaMemPoolSetAttribute)
NOTHING(cudaMemcpyBatchAsync)
NOTHING(cudaStreamUpdateCaptureDependencies)
NOTHING(cudaThreadExchangeStreamCaptureMode)
NOTHING(cudaUserObjectCreate)
