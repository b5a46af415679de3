/* A stand-in for libnccl.so.2 on machines without a GPU: its debug output, nothing else of it.
 *
 * As in NCCL the level is read lazily at the first line, a line goes to NCCL_DEBUG_FILE (opened with "w") or to
 * stdout, and ncclResetDebugInit makes the next line read the environment again. With -DOLD_NCCL it is as it
 * was before 2.24: nothing can be read again. fakeAllReduce is what a training step calls.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NONE, VERSION, WARN, INFO, TRACE };
#define EXPORT __attribute__((visibility("default")))
#ifdef OLD_NCCL
#define NUMBER 22105
#else
#define NUMBER 22809
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int level = -1, coll;
static FILE *out;
static uint64_t operations;

static void expand(char *path, size_t size, const char *pattern) {
  size_t used = 0;
  for (const char *c = pattern; *c && used + 64 < size; c++) {
    if (c[0] == '%' && c[1] == 'p') used += snprintf(path + used, size - used, "%d", (int)getpid()), c++;
    else if (c[0] == '%' && c[1] == 'h') used += gethostname(path + used, 60) ? 0 : strlen(path + used), c++;
    else path[used++] = *c;
  }
  path[used] = 0;
}

static void read_environment(void) {
  static const char *names[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};
  const char *wanted = getenv("NCCL_DEBUG"), *subsys = getenv("NCCL_DEBUG_SUBSYS"), *file = getenv("NCCL_DEBUG_FILE");
  char path[4096];
  int found = NONE;
  for (int i = 0; wanted && i <= TRACE; i++)
    if (!strcasecmp(wanted, names[i])) found = i;
  coll = subsys && (strstr(subsys, "COLL") != NULL || strstr(subsys, "ALL") != NULL) == (subsys[0] != '^');
  if (out && out != stdout) fclose(out);
  out = stdout;
  if (file && *file && found > VERSION) {
    expand(path, sizeof path, file);
    FILE *opened = fopen(path, "w");
    if (opened) setlinebuf(out = opened);
  }
  level = found;
}

EXPORT int ncclGetVersion(int *number) {
  *number = NUMBER;
  return 0;
}

#ifndef OLD_NCCL
EXPORT void ncclResetDebugInit(void) {
  pthread_mutex_lock(&lock);
  level = -1;
  pthread_mutex_unlock(&lock);
}
#endif

EXPORT void fakeAllReduce(void) {
  char host[64] = "";
  pthread_mutex_lock(&lock);
  if (level < 0) read_environment();
  operations++;
  if (level >= INFO && coll) {
    gethostname(host, sizeof host - 1);
    fprintf(out, "%s:%d:%ld [0] NCCL INFO AllReduce: opCount %lx sendbuff 0x7f0 recvbuff 0x7f0 count 1024 datatype 7 "
                 "op 0 root 0 comm 0x55 [nranks=2] stream 0x56\n",
            host, (int)getpid(), (long)syscall(SYS_gettid), (unsigned long)operations);
  }
  pthread_mutex_unlock(&lock);
}
