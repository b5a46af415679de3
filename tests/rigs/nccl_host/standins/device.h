/* What the stand-ins agree on: how many GPUs there are, where they are on PCI, and what is broken.
 *
 *   RIG_GPUS=8            how many
 *   RIG_NVLINKS=18        NVLinks of each, all to a switch; 0 for a machine with PCIe alone
 *   RIG_NVLS=1            NVLink SHARP: the driver can multicast
 *   RIG_MEMORY_MB=81920   memory of each
 *   RIG_ERROR=700@3       from the third kernel on every call answers this error of CUDA; @0: the first stream cannot be made
 *   RIG_MEET=FILE         a kernel ends once all of RIG_WORLD ranks have launched as many; RIG_RANK is who we are.
 *                         Without these two, what torchrun says: WORLD_SIZE and RANK
 */
#pragma once
#include <stdint.h>
#include <stdlib.h>

#define MOST_GPUS 16

static inline int setting(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}

static inline int this_rank(void) { return setting("RIG_RANK", setting("RANK", 0)); }
static inline int ranks(void) { return setting("RIG_WORLD", setting("WORLD_SIZE", 1)); }

static inline int gpus(void) {
  int count = setting("RIG_GPUS", 8);
  return count < 0 ? 0 : count > MOST_GPUS ? MOST_GPUS : count;
}

/* As in a machine of eight H100 */
static inline unsigned pci_bus(int gpu) {
  static const unsigned buses[MOST_GPUS] = {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf,
                                            0xe1, 0xe3, 0xe5, 0xe7, 0xe9, 0xeb, 0xed, 0xef};
  return buses[gpu];
}

/* Memory of a GPU, which processes can share: a file without a name (memory.c) */
struct block {
  char *at;
  size_t size;
  int kind; /* of enum kind */
  int device;
  struct handle *handle;
  struct block *next;
};

enum kind { DEVICE = 1, HOST = 2 };

/* A piece of memory before it is mapped; its last page holds the properties that it was asked with */
struct handle {
  int file;
  size_t size;
  int references;
};

struct handle *handle_new(size_t size, const void *properties, size_t length);
struct handle *handle_of_file(int file);
void handle_keep(struct handle *handle);
void handle_drop(struct handle *handle);
int handle_properties(struct handle *handle, void *properties, size_t length);
char *block_map(struct handle *handle, size_t offset, size_t size, void *at, int device);
struct block *block_at(const void *address);
void block_add(void *at, size_t size, int kind, int device, struct handle *handle);
int block_remove(void *at, struct block *removed);
int memory_take(size_t size); /* 0 where the GPU has no more */
void memory_give(size_t size);
size_t memory_used(void);

int error_now(void); /* of RIG_ERROR; 0 while all is well */
int current_device(void);
void *driver_function(const char *name); /* driver.c: by its name in cuda.h without a version */
