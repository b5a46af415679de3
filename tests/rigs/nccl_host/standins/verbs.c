/* Stands in for libibverbs.so.1 at its ABI: HCAs whose queue pairs are made and connected, and move nothing.
 *
 *   RIG_HCAS=8             how many, mlx5_0 and on, one port each at 400 Gbit/s
 *   RIG_ROCE=1             Ethernet in place of InfiniBand
 *   RIG_IB=port-error      with the first request that is posted the port goes down
 *   RIG_IB=retry           requests that are posted get no answer: completion with status 12
 *   RIG_IB=unreachable     no queue pair can be connected: ENETUNREACH
 *   RIG_IB=memlock         no memory can be registered: ENOMEM
 */
#define _GNU_SOURCE
#include "device.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ibvcore.h" /* NCCL's own declarations of the ABI */

#define MOST_HCAS 16
#define VENDOR_TIMEOUT 129

struct queue { /* of completions */
  struct ibv_cq cq;
  int waiting;
  struct ibv_wc wc;
};

static struct ibv_device devices[MOST_HCAS];
static struct ibv_device *list[MOST_HCAS + 1];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t fell = PTHREAD_COND_INITIALIZER;
static struct ibv_device *down; /* whose port it is */

static int broken(const char *how) {
  const char *text = getenv("RIG_IB");
  return text && !strcmp(text, how);
}
static int number_of(struct ibv_device *device) { return atoi(device->name + strlen("mlx5_")); }

struct ibv_device **ibv_get_device_list(int *count) {
  int most = setting("RIG_HCAS", 8);
  for (*count = 0; *count < most && *count < MOST_HCAS; ++*count) {
    struct ibv_device *device = list[*count] = &devices[*count];
    snprintf(device->name, sizeof device->name, "mlx5_%d", *count);
    snprintf(device->dev_name, sizeof device->dev_name, "uverbs%d", *count);
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
  }
  list[*count] = NULL;
  return list;
}
void ibv_free_device_list(struct ibv_device **devices) {}
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
int ibv_fork_init(void) { return 0; }

/* ---- requests and completions */

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad) {
  struct queue *queue = (struct queue *)qp->send_cq;
  pthread_mutex_lock(&lock);
  if (broken("port-error") && !down) {
    down = qp->context->device;
    pthread_cond_broadcast(&fell);
  }
  if (broken("retry") && !queue->waiting) {
    queue->waiting = 1;
    queue->wc = (struct ibv_wc){.wr_id = request->wr_id, .status = IBV_WC_RETRY_EXC_ERR,
                                .vendor_err = VENDOR_TIMEOUT, .qp_num = qp->qp_num};
  }
  pthread_mutex_unlock(&lock);
  return 0;
}
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad) { return 0; }
static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc) {
  struct queue *queue = (struct queue *)cq;
  pthread_mutex_lock(&lock);
  int count = queue->waiting;
  if (count) *wc = queue->wc;
  queue->waiting = 0;
  pthread_mutex_unlock(&lock);
  return count;
}

/* ---- devices and ports */

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  struct verbs_context *whole = calloc(1, sizeof *whole);
  struct ibv_context *context = &whole->context;
  context->device = device;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->ops.poll_cq = poll_cq;
  return context;
}
int ibv_close_device(struct ibv_context *context) { return 0; }
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  static __thread int told;
  pthread_mutex_lock(&lock);
  while (told || down != context->device) pthread_cond_wait(&fell, &lock);
  pthread_mutex_unlock(&lock);
  told = 1;
  event->element.port_num = 1;
  event->event_type = IBV_EVENT_PORT_ERR;
  return 0;
}
void ibv_ack_async_event(struct ibv_async_event *event) {}
const char *ibv_event_type_str(enum ibv_event_type event) { return event == IBV_EVENT_PORT_ERR ? "port error" : "unknown"; }
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
  memset(attributes, 0, sizeof *attributes);
  attributes->phys_port_cnt = 1;
  attributes->max_qp = 131072;
  attributes->sys_image_guid = 0x946dae0300000000ull + number_of(context->device);
  return 0;
}
int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes) {
  memset(attributes, 0, sizeof *attributes);
  attributes->state = IBV_PORT_ACTIVE;
  attributes->max_mtu = attributes->active_mtu = IBV_MTU_4096;
  attributes->gid_tbl_len = 1;
  attributes->lid = 1 + number_of(context->device);
  attributes->active_width = 2;   /* four lanes … */
  attributes->active_speed = 128; /* … of NDR */
  attributes->link_layer = getenv("RIG_ROCE") ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  return 0;
}
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  memset(gid, 0, sizeof *gid);
  gid->raw[0] = 0xfe;
  gid->raw[1] = 0x80;
  gid->raw[15] = 1 + number_of(context->device);
  return 0;
}

/* ---- memory, queues, queue pairs */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct ibv_pd *domain = calloc(1, sizeof *domain);
  domain->context = context;
  return domain;
}
int ibv_dealloc_pd(struct ibv_pd *domain) { return 0; }
struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *address, size_t length, int access) {
  if (broken("memlock")) return errno = ENOMEM, NULL;
  struct ibv_mr *region = calloc(1, sizeof *region);
  region->context = domain->context;
  region->pd = domain;
  region->addr = address;
  region->length = length;
  return region;
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *domain, void *address, size_t length, uint64_t iova, unsigned access) {
  if (!domain) return errno = EINVAL, NULL; /* NCCL asks so whether there is such a call */
  return ibv_reg_mr(domain, address, length, access);
}
int ibv_dereg_mr(struct ibv_mr *region) { return 0; }
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int most, void *data, struct ibv_comp_channel *channel, int vector) {
  struct queue *queue = calloc(1, sizeof *queue);
  queue->cq.context = context;
  queue->cq.cqe = most;
  return &queue->cq;
}
int ibv_destroy_cq(struct ibv_cq *cq) { return 0; }
struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *attributes) {
  static uint32_t made;
  struct ibv_qp *pair = calloc(1, sizeof *pair);
  pair->context = domain->context;
  pair->pd = domain;
  pair->send_cq = attributes->send_cq;
  pair->recv_cq = attributes->recv_cq;
  pair->qp_num = 100 + __atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST);
  return pair;
}
int ibv_modify_qp(struct ibv_qp *pair, struct ibv_qp_attr *attributes, int mask) {
  int connects = mask & IBV_QP_STATE && attributes->qp_state == IBV_QPS_RTR;
  return connects && broken("unreachable") ? ENETUNREACH : 0;
}
int ibv_query_qp(struct ibv_qp *pair, struct ibv_qp_attr *attributes, int mask, struct ibv_qp_init_attr *made) { return 0; }
int ibv_destroy_qp(struct ibv_qp *pair) { return 0; }
