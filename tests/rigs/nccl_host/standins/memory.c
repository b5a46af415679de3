/* Memory of GPUs that are not there: files without a name, which several processes can map. */
#define _GNU_SOURCE
#include "device.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096ul

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static size_t used;

struct handle *handle_new(size_t size, const void *properties, size_t length) {
  struct handle *handle = calloc(1, sizeof *handle);
  handle->file = memfd_create("gpu", MFD_CLOEXEC);
  handle->size = size;
  handle->references = 1;
  if (handle->file < 0 || ftruncate(handle->file, size + PAGE) ||
      (length && pwrite(handle->file, properties, length, size) != (ssize_t)length)) {
    handle_drop(handle);
    return NULL;
  }
  return handle;
}

struct handle *handle_of_file(int file) {
  struct stat status;
  if (fstat(file, &status) || status.st_size <= (off_t)PAGE) return NULL;
  struct handle *handle = calloc(1, sizeof *handle);
  handle->file = dup(file);
  handle->size = status.st_size - PAGE;
  handle->references = 1;
  return handle;
}

void handle_keep(struct handle *handle) { __atomic_add_fetch(&handle->references, 1, __ATOMIC_SEQ_CST); }

void handle_drop(struct handle *handle) {
  if (__atomic_sub_fetch(&handle->references, 1, __ATOMIC_SEQ_CST) > 0) return;
  if (handle->file >= 0) close(handle->file);
  handle->file = -1; /* never freed: NCCL gives back some handles twice */
}

int handle_properties(struct handle *handle, void *properties, size_t length) {
  return pread(handle->file, properties, length, handle->size) == (ssize_t)length;
}

char *block_map(struct handle *handle, size_t offset, size_t size, void *at, int device) {
  int flags = MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0);
  char *address = mmap(at, size, PROT_READ | PROT_WRITE, flags, handle->file, offset);
  if (address == MAP_FAILED) return NULL;
  handle_keep(handle);
  block_add(address, size, DEVICE, device, handle);
  return address;
}

void block_add(void *at, size_t size, int kind, int device, struct handle *handle) {
  struct block *block = malloc(sizeof *block);
  pthread_mutex_lock(&lock);
  *block = (struct block){at, size, kind, device, handle, blocks};
  blocks = block;
  pthread_mutex_unlock(&lock);
}

struct block *block_at(const void *address) {
  struct block *block;
  pthread_mutex_lock(&lock);
  for (block = blocks; block; block = block->next)
    if ((const char *)address >= block->at && (const char *)address < block->at + block->size) break;
  pthread_mutex_unlock(&lock);
  return block;
}

int block_remove(void *at, struct block *removed) {
  pthread_mutex_lock(&lock);
  struct block **place = &blocks;
  while (*place && (*place)->at != at) place = &(*place)->next;
  struct block *block = *place;
  if (block) {
    *removed = *block;
    *place = block->next;
    free(block);
  }
  pthread_mutex_unlock(&lock);
  return block != NULL;
}

int memory_take(size_t size) {
  size_t most = (size_t)setting("RIG_MEMORY_MB", 81920) << 20;
  if (__atomic_add_fetch(&used, size, __ATOMIC_SEQ_CST) <= most) return 1;
  memory_give(size);
  return 0;
}

void memory_give(size_t size) { __atomic_sub_fetch(&used, size, __ATOMIC_SEQ_CST); }

size_t memory_used(void) { return used; }
