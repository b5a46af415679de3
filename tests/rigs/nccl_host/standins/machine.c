/* The machine that a rank is told it runs on: its name, and where its HCAs are on PCI. Loaded before the C library.
 *
 *   RIG_HOST=gpu-a   what gethostname says: ranks of one machine can be those of two nodes
 */
#define _GNU_SOURCE
#include "device.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int gethostname(char *name, size_t length) {
  static int (*real)(char *, size_t);
  const char *host = getenv("RIG_HOST");
  if (host) return snprintf(name, length, "%s", host), 0;
  if (!real) real = (int (*)(char *, size_t))dlsym(RTLD_NEXT, "gethostname");
  return real(name, length);
}

char *realpath(const char *path, char *resolved) {
  static char *(*real)(const char *, char *);
  int hca;
  if (sscanf(path, "/sys/class/infiniband/mlx5_%d/device", &hca) == 1) {
    char there[128]; /* beside its GPU, below the same bridge */
    snprintf(there, sizeof there, "/sys/devices/pci0000:%02x/0000:%02x:00.0/0000:%02x:00.0", pci_bus(hca) - 2,
             pci_bus(hca) - 2, pci_bus(hca) - 1);
    return resolved ? strcpy(resolved, there) : strdup(there);
  }
  if (!real) real = (char *(*)(const char *, char *))dlvsym(RTLD_NEXT, "realpath", "GLIBC_2.3");
  return real(path, resolved);
}
