/* Stands in for libnvidia-ml.so.1: what NCCL asks of it, about GPUs that are all alike and linked to one NVSwitch. */
#include "device.h"
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define NVLINK_STATE 165 /* NVML_FI_DEV_NVLINK_GET_STATE */
#define C2C_LINKS 170    /* NVML_FI_DEV_C2C_LINK_COUNT */

typedef struct gpu *gpu; /* its number, from 1 */

struct field { /* nvmlFieldValue_t */
  unsigned id, scope;
  long long stamp, latency;
  unsigned type;
  int answer;
  unsigned long long value;
};

struct pci { /* nvmlPciInfo_t; nvmlPciInfoExt_t has a version where this has the old name, and classes before the name */
  char old_name[16];
  unsigned domain, bus, device, id, subsystem;
  char name[32];
};

struct pci_ext {
  unsigned version, domain, bus, device, id, subsystem, base_class, sub_class;
  char name[32];
};

#define H100 0x233010de
#define SUBSYSTEM 0x16c110de
#define DISPLAY 3
#define CONTROLLER_3D 2

static int links(void) { return setting("RIG_NVLINKS", 18); }

API int nvmlInit(void) { return 0; }
API int nvmlInit_v2(void) { return 0; }
API int nvmlShutdown(void) { return 0; }
API const char *nvmlErrorString(int code) { return code ? "Not Supported" : "Success"; }
API int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = gpus();
  return 0;
}
API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
API int nvmlDeviceGetHandleByIndex(unsigned number, gpu *out) {
  *out = (gpu)(uintptr_t)(number + 1);
  return 0;
}
API int nvmlDeviceGetHandleByPciBusId(const char *text, gpu *out) {
  unsigned domain, bus;
  if (sscanf(text, "%x:%x", &domain, &bus) == 2)
    for (int number = 0; number < gpus(); number++)
      if (pci_bus(number) == bus) return nvmlDeviceGetHandleByIndex(number, out);
  return NOT_FOUND;
}
API int nvmlDeviceGetIndex(gpu device, unsigned *number) {
  *number = (uintptr_t)device - 1;
  return 0;
}
API int nvmlDeviceGetCudaComputeCapability(gpu device, int *major, int *minor) {
  *major = 9;
  *minor = 0;
  return 0;
}
API int nvmlDeviceGetNvLinkState(gpu device, unsigned link, unsigned *active) {
  *active = 1;
  return (int)link < links() ? 0 : NOT_SUPPORTED;
}
API int nvmlDeviceGetNvLinkRemotePciInfo(gpu device, unsigned link, char *pci) {
  if ((int)link >= links()) return NOT_SUPPORTED;
  strcpy(pci, "fffffff:ffff:ff"); /* as a driver tells of a switch that it does not show */
  return 0;
}
API int nvmlDeviceGetNvLinkCapability(gpu device, unsigned link, unsigned which, unsigned *has) {
  *has = 1;
  return (int)link < links() ? 0 : NOT_SUPPORTED;
}
API int nvmlDeviceGetP2PStatus(gpu one, gpu other, int which, int *status) {
  *status = 0;
  return 0;
}
API int nvmlDeviceGetPciInfo_v3(gpu device, struct pci *info) {
  unsigned bus = pci_bus((uintptr_t)device - 1);
  *info = (struct pci){.bus = bus, .id = H100, .subsystem = SUBSYSTEM};
  snprintf(info->old_name, sizeof info->old_name, "0000:%02X:00.0", bus);
  snprintf(info->name, sizeof info->name, "00000000:%02X:00.0", bus);
  return 0;
}
API int nvmlDeviceGetPciInfoExt(gpu device, struct pci_ext *info) {
  unsigned bus = pci_bus((uintptr_t)device - 1);
  *info = (struct pci_ext){.version = info->version, .bus = bus, .id = H100, .subsystem = SUBSYSTEM,
                           .base_class = DISPLAY, .sub_class = CONTROLLER_3D};
  snprintf(info->name, sizeof info->name, "00000000:%02X:00.0", bus);
  return 0;
}
API int nvmlDeviceGetPcieLinkMaxSpeed(gpu device, unsigned *mega_transfers) {
  *mega_transfers = 32000;
  return 0;
}
API int nvmlDeviceGetCurrPcieLinkGeneration(gpu device, unsigned *generation) {
  *generation = 5;
  return 0;
}
API int nvmlDeviceGetCurrPcieLinkWidth(gpu device, unsigned *width) {
  *width = 16;
  return 0;
}
API int nvmlDeviceGetFieldValues(gpu device, int count, struct field *fields) {
  for (int i = 0; i < count; i++) {
    fields[i].answer = fields[i].id == NVLINK_STATE || fields[i].id == C2C_LINKS ? 0 : NOT_SUPPORTED;
    fields[i].value = fields[i].id == NVLINK_STATE;
  }
  return 0;
}
API int nvmlDeviceGetGpuFabricInfoV(gpu device, void *info) { return NOT_SUPPORTED; }
API int nvmlDeviceGetPlatformInfo(gpu device, void *info) { return NOT_SUPPORTED; }
API int nvmlSystemGetConfComputeState(unsigned *state) {
  memset(state, 0, 3 * sizeof *state);
  return 0;
}
API int nvmlSystemGetConfComputeSettings(unsigned *settings) {
  memset(settings + 1, 0, 4 * sizeof *settings); /* behind its version */
  return 0;
}
