/* A made-up libnvidia-ml.so.1 for tests. The file named by FAKE_NVML describes the machine, one line per item:
 *
 *   driver 550.54.15          cuda 12040          init error 18          init hang
 *   gpu uuid=GPU-1;name=NVIDIA H100 80GB HBM3;pci=00000000:18:00.0;minor=0;memory=85899345920;ecc=2;error=15;hang=1;mig=7
 *       (in the same line) ;used=1073741824;util=98;milliwatts=650000;limit=700000;celsius=71;mhz=1980;max_mhz=1980;
 *       throttle=64;island=1;links=18;link_errors=3;remap=1;pids=4711,4712
 *   slice uuid=MIG-1;name=NVIDIA H100 80GB HBM3 MIG 1g.10gb;memory=10737418240        (of the gpu above)
 *   event gpu=3;xid=48
 *
 * error=N: the GPU answers every question with that code (15: lost). hang=1: it never answers; hang=N: not from the Nth question
 * of this process on. memory=-1: not supported. mig=N: MIG mode is on, with places for N slices. GPUs of one island (1, 2, ...)
 * are connected by NVLink. remap=1: a row remap is pending; remap=2: it has failed. What is not given is not supported. Events
 * that are added to the file are delivered to every process that waits for them then. The file is read again whenever it was
 * replaced: write another one and rename it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OK 0
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TOO_SMALL 7
#define TIMEOUT 10
#define MOST 64

typedef struct {
    char uuid[96], name[96], pci[32];
    long long memory, used;
    unsigned minor, ecc, error, hang, mig, slices, island, remap, pids[8], pid_count;
    int util, milliwatts, limit, celsius, mhz, max_mhz, throttle, links, link_errors; /* -1: not supported */
    int parent;
} Gpu;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;
typedef struct {
    unsigned long long total, free, used;
} Memory;
typedef struct {
    unsigned gpu, memory;
} Utilization;
typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} Process;
typedef struct {
    Gpu *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;

static Gpu gpus[MOST], slices[MOST * 8];
static int count, slice_count, init_error, init_hangs, cuda = 12040;
static int events[MOST][2], event_count, events_sent; /* GPU and Xid */
static unsigned asked[MOST];
static struct stat loaded;
static char driver[80] = "550.54.15";

static void field(char *item, Gpu *gpu) {
    char *value = strchr(item, '=');
    if (!value) return;
    *value++ = 0;
    if (!strcmp(item, "uuid")) snprintf(gpu->uuid, sizeof gpu->uuid, "%s", value);
    else if (!strcmp(item, "name")) snprintf(gpu->name, sizeof gpu->name, "%s", value);
    else if (!strcmp(item, "pci")) snprintf(gpu->pci, sizeof gpu->pci, "%s", value);
    else if (!strcmp(item, "memory")) gpu->memory = atoll(value);
    else if (!strcmp(item, "minor")) gpu->minor = atoi(value);
    else if (!strcmp(item, "ecc")) gpu->ecc = atoi(value);
    else if (!strcmp(item, "error")) gpu->error = atoi(value);
    else if (!strcmp(item, "hang")) gpu->hang = atoi(value);
    else if (!strcmp(item, "mig")) gpu->mig = atoi(value);
    else if (!strcmp(item, "used")) gpu->used = atoll(value);
    else if (!strcmp(item, "remap")) gpu->remap = atoi(value);
    else if (!strcmp(item, "pids"))
        for (char *pid = value; pid && gpu->pid_count < 8; pid = strchr(pid, ',') ? strchr(pid, ',') + 1 : NULL)
            gpu->pids[gpu->pid_count++] = atoi(pid);
    else if (!strcmp(item, "island")) gpu->island = atoi(value);
    else if (!strcmp(item, "util")) gpu->util = atoi(value);
    else if (!strcmp(item, "milliwatts")) gpu->milliwatts = atoi(value);
    else if (!strcmp(item, "limit")) gpu->limit = atoi(value);
    else if (!strcmp(item, "celsius")) gpu->celsius = atoi(value);
    else if (!strcmp(item, "mhz")) gpu->mhz = atoi(value);
    else if (!strcmp(item, "max_mhz")) gpu->max_mhz = atoi(value);
    else if (!strcmp(item, "throttle")) gpu->throttle = atoi(value);
    else if (!strcmp(item, "links")) gpu->links = atoi(value);
    else if (!strcmp(item, "link_errors")) gpu->link_errors = atoi(value);
}

static void clear(Gpu *gpu, int parent) {
    memset(gpu, 0, sizeof *gpu);
    gpu->parent = parent;
    gpu->util = gpu->milliwatts = gpu->limit = gpu->celsius = gpu->mhz = gpu->max_mhz = gpu->throttle = gpu->links = -1;
}

static void fields(char *text, Gpu *gpu) {
    for (char *item = strtok(text, ";\n"); item; item = strtok(NULL, ";\n")) field(item, gpu);
}

static void load(void) {
    char line[1024];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    count = slice_count = init_error = init_hangs = event_count = 0;
    if (file) fstat(fileno(file), &loaded);
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "driver ", 7)) sscanf(line + 7, "%79s", driver);
        else if (!strncmp(line, "cuda ", 5)) cuda = atoi(line + 5);
        else if (!strncmp(line, "init error ", 11)) init_error = atoi(line + 11);
        else if (!strncmp(line, "init hang", 9)) init_hangs = 1;
        else if (!strncmp(line, "event ", 6) && event_count < MOST) {
            if (sscanf(line + 6, "gpu=%d;xid=%d", &events[event_count][0], &events[event_count][1]) == 2) event_count++;
        } else if (!strncmp(line, "gpu ", 4) && count < MOST) {
            clear(&gpus[count], -1);
            fields(line + 4, &gpus[count++]);
        } else if (!strncmp(line, "slice ", 6) && count && slice_count < MOST * 8) {
            clear(&slices[slice_count], count - 1);
            gpus[count - 1].slices++;
            fields(line + 6, &slices[slice_count++]);
        }
    }
    if (file) fclose(file);
}

static void hang(void) {
    for (;;) pause();
}

static void reload(void) {
    struct stat now;
    const char *path = getenv("FAKE_NVML");
    if (path && !stat(path, &now) && (now.st_ino != loaded.st_ino || now.st_mtim.tv_nsec != loaded.st_mtim.tv_nsec)) load();
}

static int ask(Gpu *gpu) {
    Gpu *card = gpu->parent < 0 ? gpu : &gpus[gpu->parent];
    if (card->hang && ++asked[card - gpus] >= card->hang) hang();
    return card->error;
}

int nvmlInit_v2(void) {
    load();
    if (init_hangs) hang();
    return init_error;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "%s", driver); return OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = cuda; return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = cuda; return OK; }
int nvmlDeviceGetCount_v2(unsigned *number) {
    reload();
    *number = count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    reload();
    if ((int)index >= count) return INVALID;
    *gpu = &gpus[index];
    return ask(*gpu);
}
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->uuid);
    return ask(gpu);
}
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->name);
    return ask(gpu);
}
int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *minor) {
    if (gpu->parent >= 0) return NOT_SUPPORTED;
    *minor = gpu->minor;
    return ask(gpu);
}
int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", gpu->pci);
    return ask(gpu);
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    if (gpu->memory < 0) return NOT_SUPPORTED;
    memory->total = gpu->memory;
    memory->used = gpu->used;
    memory->free = gpu->memory - gpu->used;
    return ask(gpu);
}
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int type, int counter, unsigned long long *errors) {
    (void)type, (void)counter;
    *errors = gpu->ecc;
    return ask(gpu);
}
int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    *current = *pending = gpu->mig > 0;
    return ask(gpu);
}
int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *number) {
    *number = gpu->mig;
    return ask(gpu);
}
int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, Gpu **slice) {
    unsigned seen = 0;
    for (int i = 0; i < slice_count; i++)
        if (&gpus[slices[i].parent] == gpu && seen++ == index) {
            *slice = &slices[i];
            return ask(gpu);
        }
    return NOT_FOUND;
}

static int number(Gpu *gpu, int value, unsigned *answer) {
    *answer = value;
    return value < 0 ? NOT_SUPPORTED : ask(gpu);
}
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *found) {
    found->memory = 0;
    return number(gpu, gpu->util, &found->gpu);
}
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *found) { return number(gpu, gpu->milliwatts, found); }
int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *found) { return number(gpu, gpu->limit, found); }
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *found) {
    (void)sensor;
    return number(gpu, gpu->celsius, found);
}
int nvmlDeviceGetClockInfo(Gpu *gpu, int type, unsigned *found) {
    (void)type;
    return number(gpu, gpu->mhz, found);
}
int nvmlDeviceGetMaxClockInfo(Gpu *gpu, int type, unsigned *found) {
    (void)type;
    return number(gpu, gpu->max_mhz, found);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *found) {
    unsigned reasons;
    int code = number(gpu, gpu->throttle, &reasons);
    *found = reasons;
    return code;
}
int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active) {
    *active = 1;
    return (int)link < gpu->links ? ask(gpu) : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkErrorCounter(Gpu *gpu, unsigned link, int counter, unsigned long long *errors) {
    *errors = link == 0 && counter == 0 ? gpu->link_errors : 0;
    return (int)link < gpu->links ? ask(gpu) : NOT_SUPPORTED;
}
int nvmlDeviceGetP2PStatus(Gpu *one, Gpu *other, int index, int *status) {
    *status = index == 2 && one->island && one->island == other->island ? OK : 5;
    return ask(one) ? ask(one) : ask(other);
}
int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = 0;
    *uncorrected = gpu->remap > 0;
    *pending = gpu->remap == 1;
    *failed = gpu->remap == 2;
    return ask(gpu);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *number, Process *found) {
    unsigned room = *number;
    *number = gpu->pid_count;
    if (gpu->pid_count > room) return TOO_SMALL;
    for (unsigned i = 0; i < gpu->pid_count; i++)
        found[i] = (Process){gpu->pids[i], gpu->used / gpu->pid_count, ~0u, ~0u};
    return ask(gpu);
}

int nvmlEventSetCreate(void **set) {
    reload();
    *set = &events_sent;
    events_sent = event_count;
    return OK;
}
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(Gpu *gpu, unsigned long long *types) {
    *types = 2 | 8;
    return ask(gpu);
}
int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, void *set) {
    (void)types, (void)set;
    return ask(gpu);
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0;; waited += 20) {
        reload();
        if (events_sent < event_count) {
            *event = (Event){&gpus[events[events_sent][0]], 8, events[events_sent][1], ~0u, ~0u};
            events_sent++;
            return OK;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}
