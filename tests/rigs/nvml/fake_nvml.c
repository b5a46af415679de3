/* A stand-in for libnvidia-ml.so.1 on machines without a GPU: the driver's border, nothing above it.
 *
 * Build with build.py. The scenario file named by DISTUI_FAKE_NVML_SCENARIO is read again whenever it changes; a
 * line is `<gpu|*|sys> <key> <value…>`, `#` begins a comment, a line for one GPU beats one for `*`:
 *
 *   sys count 8                     sys driver 570.00          number of GPUs, driver version
 *   * util 93                       0 util wave:40:99:20       a value; a sine from 40 to 99 in 20 s
 *   * energy_mj grow:300000:700000:20                          a counter that grows by such a sine a second
 *   3 proc 4711 1073741824                                     a compute process and its bytes
 *   * gpm 1    * gpm.2 71.5                                    has GPM; its metric 2 (SM activity) in percent
 *   * held_power_ns grow:0:200000000:30                        nanoseconds for which power held the clocks back
 *   3 xid 1 79                                                 an Xid event; a higher first number is a new one
 *   7 lost 1                                                   every call says GPU_IS_LOST
 *   * ret.nvmlDeviceGetName 3                                  a function answers this nvmlReturn_t
 *   * delay.nvmlDeviceGetName 500    * hang.nvmlInitWithFlags 1   microseconds; until the line is gone
 *
 * A key that no line gives is NOT_SUPPORTED. DISTUI_FAKE_NVML_TRACE names a file that gets each called function's
 * name. Structs as in nvidia-ml-py's ctypes definitions.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, VERSION = 25 };
enum { MAX_GPUS = 64, MAX_LINES = 4096, ALL = -1, SYS = -2 };
#define EXPORT __attribute__((visibility("default")))

typedef struct Device { int index; } *Handle;
typedef struct { int gpu; char key[64]; char value[96]; } Line;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version; unsigned sensor; int temperature; } Temperature;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Handle device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef union { double d; unsigned u; unsigned long ul; unsigned long long ull; long long ll; int i; unsigned short us; } Value;
typedef struct { uint32_t field, scope; int64_t timestamp, latency; unsigned type, result; Value value; } FieldValue;

static struct Device devices[MAX_GPUS];
static Line lines[MAX_LINES];
static int line_count, reads;
static long long xid_seen[MAX_GPUS];
static struct timespec read_at;
static ino_t read_inode;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void reload(void) {
    const char *path = getenv("DISTUI_FAKE_NVML_SCENARIO");
    struct stat st;
    if (!path || stat(path, &st)) return;
    if (st.st_ino == read_inode && !memcmp(&st.st_mtim, &read_at, sizeof read_at)) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char text[256], who[16];
    for (line_count = 0; line_count < MAX_LINES && fgets(text, sizeof text, file);) {
        Line *line = &lines[line_count];
        if (sscanf(text, "%15s %63s %95[^\n]", who, line->key, line->value) != 3 || *who == '#') continue;
        line->gpu = !strcmp(who, "*") ? ALL : !strcmp(who, "sys") ? SYS : atoi(who);
        line_count++;
    }
    fclose(file);
    read_inode = st.st_ino;
    read_at = st.st_mtim;
    reads++;
}

/* Copies the value of `key` for `gpu`; the last line that fits wins, one for this GPU over one for all. */
static int find(int gpu, const char *key, char value[96]) {
    int found = 0;
    pthread_mutex_lock(&lock);
    reload();
    for (int i = 0, exact = 0; i < line_count; i++) {
        if (strcmp(lines[i].key, key)) continue;
        if (lines[i].gpu != gpu && (lines[i].gpu != ALL || gpu == SYS || exact)) continue;
        exact = lines[i].gpu == gpu;
        strcpy(value, lines[i].value);
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static int number(int gpu, const char *key, double *out) {
    char value[96];
    double low, high, period;
    struct timespec now;
    if (!find(gpu, key, value)) return UNSUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    double t = now.tv_sec % 1000000 + now.tv_nsec / 1e9, turn = 2 * M_PI;
    if (sscanf(value, "wave:%lf:%lf:%lf", &low, &high, &period) == 3)
        *out = low + (high - low) * (0.5 + 0.5 * sin(turn * t / period + 0.7 * gpu));
    else if (sscanf(value, "grow:%lf:%lf:%lf", &low, &high, &period) == 3)
        *out = (low + high) / 2 * t - (high - low) / 2 * period / turn * cos(turn * t / period + 0.7 * gpu);
    else
        *out = strtod(value, NULL);
    return OK;
}

static double flag(int gpu, const char *kind, const char *function) {
    char key[96];
    double value = 0;
    snprintf(key, sizeof key, "%s%s", kind, function);
    return number(gpu, key, &value) ? 0 : value;
}

static int enter(const char *function, int gpu) {
    const char *trace = getenv("DISTUI_FAKE_NVML_TRACE");
    FILE *file = trace ? fopen(trace, "a") : NULL;
    if (file) fprintf(file, "%s\n", function), fclose(file);
    double delay = flag(gpu, "delay.", function);
    if (delay > 0) usleep((useconds_t)delay);
    while (flag(gpu, "hang.", function) > 0) usleep(5000);
    if (gpu >= 0 && flag(gpu, "lost", "") > 0) return LOST;
    return (int)flag(gpu, "ret.", function);
}

#define ENTER(gpu) do { int code_ = enter(__func__, gpu); if (code_) return code_; } while (0)

static int whole(int gpu, const char *key, unsigned *out) {
    double value;
    int code = number(gpu, key, &value);
    if (!code) *out = (unsigned)value;
    return code;
}

static int text(int gpu, const char *key, char *out, unsigned size) {
    char value[96];
    if (!find(gpu, key, value)) return UNSUPPORTED;
    return snprintf(out, size, "%s", value) < (int)size ? OK : TOO_SMALL;
}

static int count(void) {
    double value = 0;
    number(SYS, "count", &value);
    return value < MAX_GPUS ? (int)value : MAX_GPUS;
}

EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(ALL); return OK; }
EXPORT int nvmlInit_v2(void) { ENTER(ALL); return OK; }
EXPORT int nvmlShutdown(void) { ENTER(ALL); return OK; }
EXPORT const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER(SYS); return text(SYS, "driver", out, size); }
EXPORT int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(SYS); *out = count(); return OK; }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *out) {
    if ((int)index >= count()) return INVALID;
    ENTER((int)index);
    devices[index].index = index;
    *out = &devices[index];
    return OK;
}

EXPORT int nvmlDeviceGetIndex(Handle h, unsigned *out) { ENTER(h->index); *out = h->index; return OK; }
EXPORT int nvmlDeviceGetName(Handle h, char *out, unsigned size) { ENTER(h->index); return text(h->index, "name", out, size); }

EXPORT int nvmlDeviceGetUUID(Handle h, char *out, unsigned size) {
    ENTER(h->index);
    if (text(h->index, "uuid", out, size)) snprintf(out, size, "GPU-%08x-0000-4000-8000-000000000000", h->index);
    return OK;
}

EXPORT int nvmlDeviceGetUtilizationRates(Handle h, Utilization *out) {
    ENTER(h->index);
    out->memory = 0;
    return whole(h->index, "util", &out->gpu);
}

static int memory(int gpu, double *total, double *used) {
    int code = number(gpu, "mem_total", total);
    return code ? code : number(gpu, "mem_used", used);
}

EXPORT int nvmlDeviceGetMemoryInfo(Handle h, Memory *out) {
    double total, used, reserved = 0;
    ENTER(h->index);
    if (memory(h->index, &total, &used)) return UNSUPPORTED;
    number(h->index, "mem_reserved", &reserved);
    out->total = total, out->used = used + reserved, out->free = total - used - reserved;
    return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Handle h, Memory2 *out) {
    double total, used, reserved = 0;
    if (out->version != 0x02000028) return VERSION;
    ENTER(h->index);
    if (memory(h->index, &total, &used)) return UNSUPPORTED;
    number(h->index, "mem_reserved", &reserved);
    out->total = total, out->used = used, out->reserved = reserved, out->free = total - used - reserved;
    return OK;
}

#define WHOLE(function, key) \
    EXPORT int function(Handle h, unsigned *out) { ENTER(h->index); return whole(h->index, key, out); }
WHOLE(nvmlDeviceGetPowerUsage, "power_mw")
WHOLE(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
WHOLE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
WHOLE(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
WHOLE(nvmlDeviceGetPcieReplayCounter, "pcie_replays")

static int temperature(int gpu, unsigned sensor, unsigned *out) { return sensor ? INVALID : whole(gpu, "temp", out); }

EXPORT int nvmlDeviceGetTemperature(Handle h, unsigned sensor, unsigned *out) {
    ENTER(h->index);
    return temperature(h->index, sensor, out);
}

EXPORT int nvmlDeviceGetTemperatureV(Handle h, Temperature *out) {
    if (out->version != 0x0100000C) return VERSION;
    ENTER(h->index);
    return temperature(h->index, out->sensor, (unsigned *)&out->temperature);
}

static int clock_of(int gpu, unsigned type, const char *sm, const char *mem, unsigned *out) {
    return whole(gpu, type == 1 ? sm : type == 2 ? mem : "", out);
}

EXPORT int nvmlDeviceGetClockInfo(Handle h, unsigned type, unsigned *out) {
    ENTER(h->index);
    return clock_of(h->index, type, "sm_mhz", "mem_mhz", out);
}

EXPORT int nvmlDeviceGetMaxClockInfo(Handle h, unsigned type, unsigned *out) {
    ENTER(h->index);
    return clock_of(h->index, type, "max_sm_mhz", "max_mem_mhz", out);
}

static int reasons(int gpu, unsigned long long *out) {
    double value;
    int code = number(gpu, "reasons", &value);
    if (!code) *out = (unsigned long long)value;
    return code;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Handle h, unsigned long long *out) { ENTER(h->index); return reasons(h->index, out); }
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Handle h, unsigned long long *out) { ENTER(h->index); return reasons(h->index, out); }

EXPORT int nvmlDeviceGetTotalEccErrors(Handle h, unsigned type, unsigned counter, unsigned long long *out) {
    double value;
    ENTER(h->index);
    if (type != 1 || counter != 0 || number(h->index, "ecc_uncorrected", &value)) return UNSUPPORTED;
    *out = (unsigned long long)value;
    return OK;
}

EXPORT int nvmlDeviceGetRemappedRows(Handle h, unsigned *cor, unsigned *unc, unsigned *pending, unsigned *failed) {
    ENTER(h->index);
    *cor = *unc = *failed = 0;
    whole(h->index, "remap_failed", failed);
    return whole(h->index, "remap_pending", pending);
}

EXPORT int nvmlDeviceGetMigMode(Handle h, unsigned *current, unsigned *pending) {
    ENTER(h->index);
    int code = whole(h->index, "mig", current);
    *pending = *current;
    return code;
}

EXPORT int nvmlDeviceGetPcieThroughput(Handle h, unsigned counter, unsigned *out) {
    ENTER(h->index);
    usleep(20000); /* as the real one does */
    *out = counter;
    return OK;
}

static const struct { unsigned field; const char *key; } FIELDS[] = {
    {82, "mem_temp"}, {83, "energy_mj"}, {94, "pcie_replays"}, {138, "nvlink_tx_kib"}, {139, "nvlink_rx_kib"},
    {74, "held_power_ns"}, {75, "held_thermal_ns"}, {269, "held_sw_thermal_ns"}, {270, "held_hw_thermal_ns"},
    {271, "held_brake_ns"}, {144, "remap_pending"}, {145, "remap_failed"}, {197, "pcie_tx_bytes"}, {198, "pcie_rx_bytes"}, {230, "recovery"},
};

EXPORT int nvmlDeviceGetFieldValues(Handle h, int n, FieldValue *values) {
    double bits = 64;
    ENTER(h->index);
    number(h->index, "counter_bits", &bits);
    for (FieldValue *v = values; v < values + n; v++) {
        double value = 0;
        v->result = UNSUPPORTED;
        for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
            if (FIELDS[i].field == v->field) v->result = number(h->index, FIELDS[i].key, &value);
        if ((v->field == 138 || v->field == 139) && v->scope != UINT32_MAX) v->result = INVALID;
        v->type = v->field == 82 || v->field == 230 || bits == 32 ? 1 : 3;
        v->value.ull = 0;
        if (v->type == 1) v->value.u = (unsigned)(unsigned long long)value;
        else v->value.ull = (unsigned long long)value;
    }
    return OK;
}

static int processes(int gpu, unsigned *n, Process *out) {
    unsigned found = 0, room = *n;
    pthread_mutex_lock(&lock);
    reload();
    for (int i = 0; i < line_count; i++) {
        if (lines[i].gpu != gpu || strcmp(lines[i].key, "proc")) continue;
        Process one = {0, 0, UINT32_MAX, UINT32_MAX};
        if (sscanf(lines[i].value, "%u %llu", &one.pid, &one.bytes) < 2) one.bytes = UINT64_MAX;
        if (out && found < room) out[found] = one;
        found++;
    }
    pthread_mutex_unlock(&lock);
    *n = found;
    return found > room || (found && !out) ? TOO_SMALL : OK;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Handle h, unsigned *n, Process *out) { ENTER(h->index); return processes(h->index, n, out); }
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(Handle h, unsigned *n, Process *out) { ENTER(h->index); return processes(h->index, n, out); }

/* Each process of a GPU with its share of `util`, as of now; with no process NOT_FOUND, as the driver answers. */
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } ProcessUse;

EXPORT int nvmlDeviceGetProcessUtilization(Handle h, ProcessUse *out, unsigned *n, unsigned long long since) {
    Process found[256];
    unsigned there = 256, util = 0, room = *n;
    struct timespec now;
    ENTER(h->index);
    if (processes(h->index, &there, found) || there > 256) return UNSUPPORTED;
    *n = there;
    if (!there) return NOT_FOUND;
    if (!out || room < there) return TOO_SMALL;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long at = now.tv_sec * 1000000ull + now.tv_nsec / 1000;
    whole(h->index, "util", &util);
    for (unsigned i = 0; i < there; i++) out[i] = (ProcessUse){found[i].pid, at > since ? at : since, util / there, 0, 0, 0};
    return OK;
}

/* GPM: a sample is a moment of one GPU; `gpm 1` says that a GPU has it, `gpm.2`, `gpm.5` … what a metric is. */
enum { GPM_MOST = 512 };
typedef struct { int gpu; double at; } GpmSample;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { unsigned id; int result; double value; const char *info[3]; } GpmMetric;
typedef struct { unsigned version, n; GpmSample *before, *after; GpmMetric metrics[GPM_MOST]; } GpmRequest;

EXPORT int nvmlGpmQueryDeviceSupport(Handle h, GpmSupport *out) {
    double value = 0;
    ENTER(h->index);
    if (out->version != 1) return VERSION;
    number(h->index, "gpm", &value);
    out->supported = value > 0;
    return OK;
}

EXPORT int nvmlGpmSampleAlloc(GpmSample **out) { ENTER(SYS); *out = calloc(1, sizeof **out); (*out)->gpu = ALL; return OK; }
EXPORT int nvmlGpmSampleFree(GpmSample *sample) { ENTER(SYS); free(sample); return OK; }

EXPORT int nvmlGpmSampleGet(Handle h, GpmSample *sample) {
    double value = 0;
    struct timespec now;
    ENTER(h->index);
    if (number(h->index, "gpm", &value) || value <= 0) return UNSUPPORTED;
    clock_gettime(CLOCK_MONOTONIC, &now);
    sample->gpu = h->index, sample->at = now.tv_sec + now.tv_nsec / 1e9;
    return OK;
}

EXPORT int nvmlGpmMetricsGet(GpmRequest *request) {
    GpmSample *before = request->before, *after = request->after;
    if (request->version != 1) return VERSION;
    if (request->n > GPM_MOST || !before || !after || before->gpu == ALL || before->gpu != after->gpu) return INVALID;
    ENTER(after->gpu);
    if (after->at - before->at < 0.1) return INVALID; /* the driver needs 100 ms between the two */
    for (unsigned i = 0; i < request->n; i++) {
        char key[32];
        snprintf(key, sizeof key, "gpm.%u", request->metrics[i].id);
        request->metrics[i].result = number(after->gpu, key, &request->metrics[i].value);
    }
    return OK;
}

/* The oldest Xid of one GPU after number `after`; its number goes to `seq`. */
static int next_xid(int gpu, long long after, long long *seq, unsigned long long *code) {
    int found = 0;
    pthread_mutex_lock(&lock);
    reload();
    for (int i = 0; i < line_count; i++) {
        long long number_, code_;
        if (lines[i].gpu != gpu || strcmp(lines[i].key, "xid")) continue;
        if (sscanf(lines[i].value, "%lld %lld", &number_, &code_) != 2 || number_ <= after) continue;
        if (found && number_ >= *seq) continue;
        *seq = number_, *code = code_, found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

EXPORT int nvmlEventSetCreate(void **out) { ENTER(ALL); *out = xid_seen; return OK; }
EXPORT int nvmlEventSetFree(void *set) { (void)set; ENTER(ALL); return OK; }
EXPORT int nvmlDeviceGetSupportedEventTypes(Handle h, unsigned long long *out) { ENTER(h->index); *out = 0x8; return OK; }

EXPORT int nvmlDeviceRegisterEvents(Handle h, unsigned long long types, void *set) {
    unsigned long long code;
    ENTER(h->index);
    (void)types, (void)set;
    /* As the driver does: what happened before is not told. */
    while (next_xid(h->index, xid_seen[h->index], &xid_seen[h->index], &code)) {}
    return OK;
}

EXPORT int nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout_ms) {
    (void)set;
    ENTER(ALL);
    int scanned = -1;
    for (unsigned waited = 0; waited <= timeout_ms; waited += 50, usleep(50000)) {
        pthread_mutex_lock(&lock);
        reload();
        int now = reads;
        pthread_mutex_unlock(&lock);
        if (now == scanned) continue; /* the driver waits without work: so what is waited for costs a stat */
        scanned = now;
        for (int gpu = 0; gpu < count(); gpu++) {
            if (!next_xid(gpu, xid_seen[gpu], &xid_seen[gpu], &out->data)) continue;
            out->device = &devices[gpu];
            out->type = 0x8;
            return OK;
        }
    }
    return TIMEOUT;
}

/* Functions that every driver has and distui does not need; tools that stand beside it in `make bench` look for them.
 * They take what they are called with and say NOT_SUPPORTED. */
#define BARE(name) EXPORT int name(void) { return UNSUPPORTED; }
BARE(nvmlSystemGetCudaDriverVersion) BARE(nvmlSystemGetCudaDriverVersion_v2) BARE(nvmlDeviceGetHandleByUUID)
BARE(nvmlDeviceGetHandleByPciBusId_v2) BARE(nvmlDeviceGetPciInfo_v3) BARE(nvmlDeviceGetGraphicsRunningProcesses_v2)
BARE(nvmlDeviceGetGraphicsRunningProcesses_v3) BARE(nvmlDeviceGetMPSComputeRunningProcesses_v2)
BARE(nvmlDeviceGetMPSComputeRunningProcesses_v3) BARE(nvmlDeviceGetRunningProcessDetailList)
BARE(nvmlDeviceGetBAR1MemoryInfo) BARE(nvmlDeviceGetComputeMode) BARE(nvmlDeviceGetConfComputeMemSizeInfo)
BARE(nvmlDeviceGetCudaComputeCapability) BARE(nvmlDeviceGetDecoderUtilization) BARE(nvmlDeviceGetEncoderUtilization)
BARE(nvmlDeviceGetDisplayActive) BARE(nvmlDeviceGetDisplayMode) BARE(nvmlDeviceGetDriverModel)
BARE(nvmlDeviceGetDriverModel_v2) BARE(nvmlDeviceGetFanSpeed) BARE(nvmlDeviceGetFanSpeed_v2)
BARE(nvmlDeviceGetMaxMigDeviceCount) BARE(nvmlDeviceGetPerformanceState) BARE(nvmlDeviceGetPersistenceMode)
BARE(nvmlDeviceGetPowerManagementLimit) BARE(nvmlDeviceGetSerial)
#undef BARE
